"""Exceptions of the job: which it handles, and how they are shown."""
