"""Probes of optimizers: their parameters, and what happens from step to step."""
