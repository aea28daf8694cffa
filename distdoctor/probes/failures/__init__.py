"""Probes of exceptions: which the job handles, and how they are shown."""
