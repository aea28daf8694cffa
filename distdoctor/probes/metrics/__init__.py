"""Probes of evaluation metrics: how ranks combine them, and what they print."""
