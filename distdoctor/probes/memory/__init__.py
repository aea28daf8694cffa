"""What a rank keeps from step to step."""
