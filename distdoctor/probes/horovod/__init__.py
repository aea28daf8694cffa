"""Horovod: its calls, its optimizer, and how its ranks begin and end."""

OPTIMIZERS = "horovod.torch.optimizer"
"""Module of the classes that `hvd.DistributedOptimizer` makes of the user's."""
