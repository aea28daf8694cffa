"""Stacks of ranks, whoever took them: read, merged, and what they tell of a job."""
