"""Process groups and the backends that serve them."""
