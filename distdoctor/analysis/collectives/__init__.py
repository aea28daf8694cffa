"""Which collectives met which, and what of their arguments does not fit."""
