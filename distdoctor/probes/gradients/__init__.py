"""Probes of gradients, from the backward pass to the optimizer step."""
