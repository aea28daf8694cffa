"""Optimizers: what they hold, and what happens from step to step."""
