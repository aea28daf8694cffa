"""Few numbers that stand for many, to compare tensors by."""
