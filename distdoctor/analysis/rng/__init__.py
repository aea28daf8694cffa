"""Random streams: who drew the same numbers, and which nobody can draw again."""
