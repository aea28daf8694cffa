"""Collectives and messages, as they go through torch's dispatcher."""
