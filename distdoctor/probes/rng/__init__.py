"""Probes of random number streams: their seeds, and who draws from them."""
