"""Keeps errors of probes from reaching the job."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from distdoctor.probes.interruptions import is_interruption

Given = ParamSpec("Given")
Result = TypeVar("Result")

_on_loss: list[Callable[[str, BaseException], None]] = []

_excuses: list[Callable[[], bool]] = []
"""Whether nothing that runs now computes values, as inside of a transform."""

_pauses: list[None] = []
"""One for each block that lets probes sleep."""


def on_loss(report: Callable[[str, BaseException], None]) -> None:
    """Set the function that is called for each event that a probe lost."""
    _on_loss[:] = [report]


def excuse_while(holds: Callable[[], bool]) -> None:
    """Set a condition under which errors of probes are ignored."""
    _excuses[:] = [holds]


def _is_excused() -> bool:
    return any(holds() for holds in _excuses)


def harmless(probe: Callable[Given, Result]) -> Callable[Given, Result | None]:
    """Turn any error of a probe into lost evidence, and give None instead.

    Only a probe's own work goes inside; the job's call stays outside, so that the
    job's errors reach the job.
    """

    @functools.wraps(probe)
    def guarded(*args: Given.args, **kwargs: Given.kwargs) -> Result | None:
        if _pauses:
            return None
        try:
            return probe(*args, **kwargs)
        except Exception as error:  # the job must not feel the probe
            if is_interruption(error):
                raise
            if not _is_excused():
                lost(getattr(probe, "__qualname__", repr(probe)), error)
            return None

    return guarded


def tell_each(probes: Iterable[Callable[..., object]], *given: object) -> None:
    """Call several probes in order, each guarded as by `harmless`.

    One that fails takes nothing from those behind it. What is hot and has many probes
    is told so, for less than to guard each of them.
    """
    if _pauses:
        return
    for probe in probes:
        try:
            probe(*given)
        except Exception as error:  # the job must not feel the probe
            if is_interruption(error):
                raise
            if not _is_excused():
                lost(_name_of(probe), error)


def _name_of(probe: Callable[..., object]) -> str:
    """With its module: functions of several modules are called alike."""
    module = getattr(probe, "__module__", "").rpartition(".")[2]
    return f"{module}.{getattr(probe, '__qualname__', repr(probe))}"


@contextmanager
def paused() -> Iterator[None]:
    """Switch off all probes while the block runs, in all threads.

    For what distdoctor itself computes in the job's process, which is no part of the
    job. Calls of communication are noted all the same: a rank may hang in one.
    """
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def lose_or_raise(probe: str, error: Exception) -> None:
    """What becomes of an error that a guard has caught.

    Args:
        probe: Whose guard.
        error: It is counted as lost evidence, if it is the probe's own.

    Raises:
        Exception: The error, if it is meant for the job; see `interruptions`.
    """
    if is_interruption(error):
        raise error
    lost(probe, error)


def lost(probe: str, error: BaseException) -> None:
    """Count an event that a probe lost, where a `harmless` call costs too much."""
    try:
        for report in _on_loss:
            report(probe, error)
    except Exception as another:
        if is_interruption(another):
            raise
