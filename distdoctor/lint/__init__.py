"""Finds in the text of programs where ranks may part, without a run."""
