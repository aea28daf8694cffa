"""The interface of a probe: installed once, called at certain moments, and reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple


def _nothing() -> None:
    """Most probes have something to do at a few of the moments only."""


class Probe(NamedTuple):
    """Code that watches one aspect of a job; each probe's module has one, `PROBE`.

    None of these functions needs to be harmless by itself: who calls them, `registry`,
    sees to that. (It is no dataclass because to import those takes longer than all else
    that a process without torch needs.)

    Attributes:
        install: Puts it in place; called once, at its stage.
        imports: By a module's full name, what is called right after that module was
            imported, or at once if it is there already.
        joined: Called when the process has become a rank, for the first time.
        stepped: Called with an optimizer that has made a step, in a process with a
            journal.
        flush: Writes what was kept back; the job or the rank may end, or go on.
        reset: The process begins to play in another run: nothing is known any more.
            What was put in place stays.
    """

    install: Callable[[], object] = _nothing
    imports: Mapping[str, Callable[[ModuleType], object]] = MappingProxyType({})
    joined: Callable[[], object] = _nothing
    stepped: Callable[[Any], object] | None = None
    flush: Callable[[], object] = _nothing
    reset: Callable[[], object] = _nothing
