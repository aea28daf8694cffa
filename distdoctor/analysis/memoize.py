"""Answers that are worked out once per run, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from distdoctor.model.run import Run

Answer = TypeVar("Answer")


def memoize(question: Callable[[Run], Answer]) -> Callable[[Run], Answer]:
    """Keep the answer with the run; all who ask share it, and must not change it.

    Args:
        question: A function of the run alone.

    Returns:
        The function that asks it once per run.
    """
    key = f"{question.__module__}.{question.__qualname__}"

    @wraps(question)
    def asked(run: Run) -> Answer:
        if key not in run.memory:
            run.memory[key] = question(run)
        answer: Answer = run.memory[key]
        return answer

    return asked
