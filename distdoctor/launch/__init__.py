"""Starts the user's job, watches it for deadlocks, and ends it."""
