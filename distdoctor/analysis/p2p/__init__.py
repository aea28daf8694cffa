"""Sends and receives: which met which, and which never will."""
