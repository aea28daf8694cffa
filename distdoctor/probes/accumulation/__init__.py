"""On what, and with which weights, a step's gradients are accumulated."""
