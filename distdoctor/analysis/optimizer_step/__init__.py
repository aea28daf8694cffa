"""What optimizers hold, and what happens from one step to the next."""
