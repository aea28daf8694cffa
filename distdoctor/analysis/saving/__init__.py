"""What was saved, what of it came back, and two runs beside each other."""
