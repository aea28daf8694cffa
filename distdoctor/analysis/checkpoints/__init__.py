"""What was saved, who wrote it, and what of it came back."""
