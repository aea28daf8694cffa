"""What a job writes and reads again: checkpoints, and what they give back."""
