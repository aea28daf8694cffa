"""Models and their weights: where they come from, and what changes them."""
