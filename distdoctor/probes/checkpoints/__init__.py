"""Probes of checkpoints: what a job saves, loads and restores into its objects."""
