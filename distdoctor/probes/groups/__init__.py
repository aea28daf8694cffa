"""Process groups and what serves them."""
