"""Random streams: how they are seeded, and who draws from them."""
