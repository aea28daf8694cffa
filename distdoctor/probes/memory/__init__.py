"""Probes of memory that a rank keeps from step to step."""
