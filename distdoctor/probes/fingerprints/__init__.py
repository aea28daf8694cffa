"""Fingerprints: few numbers that stand for tensors, to compare them by."""
