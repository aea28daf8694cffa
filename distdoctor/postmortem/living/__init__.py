"""A job that runs right now: its ranks found, and looked at from outside."""
