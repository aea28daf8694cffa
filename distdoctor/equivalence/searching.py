"""Searches for an example that fails, and shrinks it to the smallest one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

Kind = TypeVar("Kind")
Found = TypeVar("Found")


class _Fails(Exception):
    """Tells hypothesis that an example fails, so that it shrinks it."""


def search(
    strategy: SearchStrategy[Kind],
    attempt: Callable[[Kind], Found | None],
    examples: int,
) -> tuple[Kind, Found] | None:
    """The smallest failing example; None if all pass.

    Examples are the same in each run. What an attempt raises ends the search and is
    raised as it is, with a note of the example.

    Args:
        strategy: Draws the examples.
        attempt: Gives what is wrong with one, or None.
        examples: How many are tried, at most.
    """
    failing: list[tuple[Kind, Found]] = []
    errors: list[Exception] = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    @given(strategy)
    def probe(example: Kind) -> None:
        if errors:
            return
        try:
            found = attempt(example)
        except Exception as error:  # noqa: BLE001 - raised below
            error.add_note(f"raised for {example}")
            errors.append(error)
            return
        if found is not None:
            failing[:] = [(example, found)]  # the last of all is the smallest
            raise _Fails

    with suppress(_Fails, Flaky):  # flaky: it failed, and an error came then
        probe()
    if errors:
        raise errors[0]
    return failing[0] if failing else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore random states, number of threads and default dtype afterwards.

    One thread, because the tensors are small: two were a hundred times slower on a busy
    machine (measured, torch 2.13).
    """
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    state, others = random.getstate(), _numpy_state()
    with torch.random.fork_rng():
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            random.setstate(state)
            if others is not None:
                sys.modules["numpy"].random.set_state(others)


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()
