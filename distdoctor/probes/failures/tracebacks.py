"""Keeps distdoctor's own lines out of the tracebacks that a job prints.

Probes stand between the user's line and the function it calls. They change nothing in
what is raised, and a reader should not have to wonder about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, ModuleType, TracebackType
from typing import Any

from distdoctor.probes.call_sites import OWN
from distdoctor.probes.probe import Probe

STANDING_IN: set[CodeType] = set()
"""Code of ours that says to lie in a file of torch's; see `patching.traced_as`."""


def without_own(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without our frames; as it is if there are no others."""
    kept = [one for one in _links(traceback) if not _is_own(one)]
    for link, following in zip(kept, [*kept, None][1:], strict=True):
        if link.tb_next is not following:
            link.tb_next = following
    return kept[0] if kept else traceback


def clean(error: BaseException) -> None:
    """Take our frames out of the traceback of an exception and of what led to it."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = without_own(one.__traceback__)
            rest += [one.__cause__, one.__context__]


def watch_printing(module: ModuleType) -> None:
    """Wrap `traceback`, right after its import, to leave out our frames.

    Python 3.11 to 3.14 walk through this function, not a public one, for each
    exception; where there is none of that name, tracebacks are printed as they are.
    """
    name = "_walk_tb_with_full_positions"
    made: Callable[[TracebackType | None], Iterator[Any]] | None
    made = getattr(module, name, None)
    if made is None:
        return
    walk = made

    def walk_without_own(traceback: TracebackType | None) -> Iterator[Any]:
        frames = list(walk(traceback))
        kept = [one for one in frames if not _is_ours(one[0].f_code)]
        yield from kept or frames

    setattr(module, name, walk_without_own)


def _links(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_own(link: TracebackType) -> bool:
    return _is_ours(link.tb_frame.f_code)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(OWN + "probes") or code in STANDING_IN


PROBE = Probe(imports={"traceback": watch_printing})
