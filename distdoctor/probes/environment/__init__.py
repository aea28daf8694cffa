"""Under which conditions a rank trains: settings, and time on a processor."""
