"""Who read which samples, in which order, and what was made of it."""
