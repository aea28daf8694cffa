"""Where the ranks' ways through the program part, and why."""
