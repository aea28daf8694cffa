"""Learning rates: warm-up, schedules, scaling with the global batch."""
