"""Probes of how the processes of a job begin and end."""
