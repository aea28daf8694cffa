"""Two runs of a job beside each other."""
