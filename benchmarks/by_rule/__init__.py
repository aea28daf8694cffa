"""Faults made by rule in healthy programs, and how they are told."""
