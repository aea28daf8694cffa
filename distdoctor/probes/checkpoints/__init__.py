"""What a job writes and reads again, and what it gives back to its objects."""
