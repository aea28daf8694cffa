"""Calls that look alike, of which one side makes a later one than the other.

A helper that all collectives go through has one line for all of them. Which call of the
user's it serves, the stacks tell: who stands further on, in the same round of the same
loops, has passed by the call in which the others stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.analysis.causes import (
    SKIPPED_HERE,
    Cause,
    Divergence,
    pointers,
    sides,
    where_of,
)
from distdoctor.analysis.divergence.loop_departures import ways_around
from distdoctor.analysis.divergence.progress_order import is_behind
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.analysis.divergence.skipped_calls import OvertakenCall
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run

_UNLIKE = {Cause.ORDER, Cause.NUMEL, Cause.DTYPE}

_MOST = 3  # with more ways a list says nothing


def overtaken(run: Run, divergence: Divergence) -> Divergence:
    """Calls of one line in another order, told as a call that one side skipped.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is not so.
    """
    places = {call.place for call in divergence.calls.values()}
    if divergence.why not in _UNLIKE or len(places) != 1 or GUARD in divergence.details:
        return divergence
    asked = [*sides(divergence, str).values()]
    if len(asked) != 2 or not run.sources or {*divergence.calls} - {*run.stacks}:
        return divergence
    for here, ahead in (asked, asked[::-1]):
        mine, theirs = run.stacks[here[0]], run.stacks[ahead[0]]
        if not is_behind(run, mine, theirs):
            continue
        way = _way_in([f.place for f in mine], [f.place for f in theirs])
        around = [one for place in way for one in ways_around(run, place)]
        if not 0 < len(around) <= _MOST:
            return divergence
        call, other = divergence.calls[here[0]], divergence.calls[ahead[0]]
        return replace(
            divergence,
            why=Cause.SKIPPED,
            culprits=tuple(ahead),
            victims=tuple(here),
            certainty=Certainty.LIKELY,
            elsewhere=pointers(way[:1], ahead, SKIPPED_HERE),
            facts=OvertakenCall(
                tuple(ahead), tuple(here), call, where_of(divergence), other
            ),
            remarks="",
        )
    return divergence


def _way_in(mine: Sequence[Place], theirs: Sequence[Place]) -> list[Place]:
    """Lines of the first stack from where the two part, innermost first.

    The helper's own lines, which both stand in, are left out.
    """
    shared = {*theirs}
    return [place for place in mine if place not in shared]
