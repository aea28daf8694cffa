"""Horovod's optimizer: what it was made of, and what was done to its gradients."""
