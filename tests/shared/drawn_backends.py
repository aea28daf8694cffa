"""Drawn runs as they would have been on another backend."""

from dataclasses import replace

from distdoctor.model.events import Started
from distdoctor.model.run import Run


def put_on(backend: str, run: Run) -> None:
    """Have the ranks of a run say that they started on a backend.

    Args:
        backend: As torch names it: "nccl".
        run: What was drawn, with the starts of its ranks.
    """
    lives = {
        rank: [
            (at, replace(one, backend=backend) if isinstance(one, Started) else one)
            for at, one in life
        ]
        for rank, life in run.life.items()
    }
    object.__setattr__(run, "life", lives)
