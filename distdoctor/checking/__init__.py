"""What `check` and `examine` do, whoever asks: a terminal, Python or pytest."""
