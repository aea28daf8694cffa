"""Who read which samples, in which order."""
