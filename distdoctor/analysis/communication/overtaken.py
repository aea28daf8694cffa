"""Calls that look alike, of which one side makes a later one than the other.

A helper that all collectives go through has one line for all of them. Which call of the
user's it serves, the stacks tell: who stands further on, in the same round of the same
loops, has passed by the call in which the others stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.analysis.communication.branches import program_of
from distdoctor.analysis.communication.guarded import GUARD
from distdoctor.analysis.communication.leaving import Way, skips
from distdoctor.analysis.communication.ties import is_behind
from distdoctor.analysis.reasons import (
    SKIPPED_HERE,
    Divergence,
    Why,
    capital,
    pointers,
    waits,
    where_of,
)
from distdoctor.analysis.source.variation import Nature
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

_UNLIKE = {Why.ORDER, Why.NUMEL, Why.DTYPE}

_MOST = 3  # with more ways a list says nothing


def overtaken(run: Run, told: Divergence) -> Divergence:
    """Calls of one line in another order, told as a call that one side skipped."""
    places = {call.place for call in told.calls.values()}
    if told.why not in _UNLIKE or len(places) != 1 or GUARD in told.details:
        return told
    sides = _sides(told)
    if len(sides) != 2 or not run.sources or {*told.calls} - {*run.stacks}:
        return told
    for here, ahead in (sides, sides[::-1]):
        mine, theirs = run.stacks[here[0]], run.stacks[ahead[0]]
        if not is_behind(run, mine, theirs):
            continue
        way = _way_in([f.place for f in mine], [f.place for f in theirs])
        around = [one for place in way for one in _ways_around(run, place)]
        if not 0 < len(around) <= _MOST:
            return told
        call, other = told.calls[here[0]], told.calls[ahead[0]]
        return replace(
            told,
            why=Why.SKIPPED,
            culprits=tuple(ahead),
            victims=tuple(here),
            certainty=Certainty.LIKELY,
            elsewhere=pointers(way[:1], ahead, SKIPPED_HERE),
            story=f"{capital(named(ahead))} skipped {call} ({where_of(told)}) and "
            f"went on to {other}; {named(here)} {waits(here)} in it.",
        )
    return told


def _sides(told: Divergence) -> list[list[int]]:
    """Ranks by what they ask for, of calls from one line."""
    sides: dict[str, list[int]] = {}
    for rank, call in sorted(told.calls.items()):
        sides.setdefault(str(call), []).append(rank)
    return list(sides.values())


def _way_in(mine: Sequence[Place], theirs: Sequence[Place]) -> list[Place]:
    """Lines of the first stack from where the two part, innermost first.

    The helper's own lines, which both stand in, are left out.
    """
    shared = {*theirs}
    return [place for place in mine if place not in shared]


def _ways_around(run: Run, place: Place) -> list[Way]:
    """What may lead some ranks, and not others, around a line."""
    function = program_of(run).at(place.file, place.line)
    if function is None:
        return []
    return [
        way
        for way in skips(run, function, place)
        if way.nature in {Nature.LOCAL, Nature.OPEN}
    ]
