"""Learning rates and the schedulers that set them."""
