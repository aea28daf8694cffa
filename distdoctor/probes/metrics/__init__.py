"""What ranks make of their evaluations, and what they write of it."""
