"""Questions about the environment of ranks: software, sources and variables."""
