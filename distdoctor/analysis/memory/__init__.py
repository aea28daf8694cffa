"""Memory that grows from step to step."""
