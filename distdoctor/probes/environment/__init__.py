"""Probes of a rank's environment: settings, and time on a processor."""
