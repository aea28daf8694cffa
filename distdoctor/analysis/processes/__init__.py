"""Processes that ranks have forked."""
