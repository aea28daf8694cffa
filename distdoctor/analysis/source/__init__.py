"""What the user's source says, asked without a run: functions, conditions, ranks."""
