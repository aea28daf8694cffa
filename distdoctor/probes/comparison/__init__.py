"""Probes for comparing two runs of a job: fingerprints, and copies of files."""
