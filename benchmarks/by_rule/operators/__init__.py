"""The operators, by what they change; importing this declares them all."""

from by_rule.operators import calls, course, data, processes, replicas, steps

__all__ = ["calls", "course", "data", "processes", "replicas", "steps"]
