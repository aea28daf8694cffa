"""Probes of learning rates and of the schedulers that set them."""
