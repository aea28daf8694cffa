"""Training steps: backward, accumulation, scaling, clipping, optimizers."""
