"""Probes of gradient accumulation: which batches add up, with which weights."""
