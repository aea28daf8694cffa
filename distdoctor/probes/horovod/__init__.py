"""Horovod: its calls, its optimizer, and how its ranks begin and end."""
