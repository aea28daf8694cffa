"""What every probe is: put in place once, told of a few moments, and made as new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple


def _nothing() -> None:
    """Most probes have something to do at a few of the moments only."""


class Probe(NamedTuple):
    """Something that sees one subject of a job; a module of a probe has one, `PROBE`.

    None of these functions needs to be harmless by itself: who calls them, `registry`,
    sees to that. (It is no dataclass because to import those takes longer than all else
    that a process without torch needs.)

    Attributes:
        install: Puts it in place; called once, at its stage.
        imports: By a module's full name, what is called right after that module was
            imported, or at once if it is there already.
        joined: The process has become a rank, for the first time.
        stepped: An optimizer, the argument, has made a step in a process that has a
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
