"""Run → verdicts → conclusion: what all checks say of a run, and what it comes to."""
