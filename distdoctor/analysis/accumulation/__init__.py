"""Gradient accumulation: what each micro-batch weighs, and what is cleared."""
