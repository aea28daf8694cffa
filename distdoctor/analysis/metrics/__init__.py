"""What ranks make of their evaluations, each and together."""
