"""Starts the user's job under watch, proves that it can go on or not, and ends it."""
