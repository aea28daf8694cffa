"""Whether ranks part ways because only some of them ran a wrapped model.

A forward pass of DDP may broadcast buffers, one of FSDP gathers weights, and so does
their state dict: all of that is for all ranks to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from distdoctor.analysis.causes import (
    LEFT_LOOP,
    Cause,
    Divergence,
    pointers,
    where,
)
from distdoctor.analysis.collectives.alignment import Alignment, Meeting, alignments
from distdoctor.analysis.divergence.parting_branches import ways_to
from distdoctor.analysis.divergence.rank_guards import WRAPPED
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Location
from distdoctor.model.layers import LAYER_MASK, LAYER_SHIFT, LAYERS
from distdoctor.model.run import Run

_EXPLAINED = {
    Cause.DIED,
    Cause.UNEVEN,
    Cause.BUSY,
    Cause.UNUSED,
    Cause.SWALLOWED,
    Cause.MESH,
}


@dataclass(frozen=True, slots=True)
class LoneForward:
    """A pass through a wrapped model that only some ranks make from its line.

    Attributes:
        ranks: Those.
        others: The rest of the group.
        does: What they do, in words.
        call: The call that the model makes for them.
        where: Its place in the group's sequence.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    does: str
    call: Call
    where: str


class _Stray(NamedTuple):
    meeting: Meeting
    ranks: tuple[int, ...]
    site: int


def forward_by_some(run: Run, divergence: Divergence) -> Divergence:
    """The divergence, told as a forward pass that not all ranks ran, if it was one.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it was none.
    """
    if divergence.group is None or divergence.why in _EXPLAINED:
        return divergence
    if any(line.remark == LEFT_LOOP for line in divergence.elsewhere):
        return divergence  # they would have run it in the next round
    stray = _stray(run, divergence)
    if stray is None:
        return divergence
    meeting, ranks = stray.meeting, stray.ranks
    call = run.call(meeting.rows[ranks[0]])
    others = tuple(rank for rank in divergence.group.ranks if rank not in ranks)
    verbs = WRAPPED.get(call.layer)
    if verbs is None:  # this rank's call from that line is another one
        return divergence
    verb = verbs[len(ranks) > 1]
    here = () if call.place is None else (call.place,)
    lines = (
        *pointers(here, ranks, verb),
        *pointers(_callers(run, call), ranks, "leads there"),
    )
    return replace(
        divergence,
        why=Cause.FORWARD,
        culprits=ranks,
        victims=others,
        elsewhere=_untold(divergence, ranks, lines),
        remarks="",
        facts=LoneForward(
            ranks, others, verb, call, where(meeting.group, meeting.ordinal)
        ),
    )


def _callers(run: Run, call: Call) -> list[Place]:
    """Lines that lead to a call, the next first, where the source has one way there."""
    ways = ways_to(run, call)
    return [*ways[0][-2::-1]][:_MOST_CALLERS] if len(ways) == 1 else []


_MOST_CALLERS = 2


def _untold(
    divergence: Divergence, culprits: tuple[int, ...], lines: tuple[Location, ...]
) -> tuple[Location, ...]:
    """Without lines at which the ranks at fault still stand: those are told anyway."""
    stand = {call.place for r, call in divergence.calls.items() if r in culprits}
    return tuple(line for line in lines if line.place not in stand)


def _stray(run: Run, divergence: Divergence) -> _Stray | None:
    """The last meeting to which some ranks came from a line that is theirs alone.

    Their call was issued by a wrapped model, and the others came from a line that all
    ranks know, or not at all. (Branches in which each rank runs the model at a line
    of its own are no stray: there nobody does what the rest does.)
    """
    calls = run.calls
    layers = run.column("flags") >> LAYER_SHIFT & LAYER_MASK
    runs = np.isin(layers, [LAYERS.index(layer) for layer in WRAPPED])
    if not runs.any():
        return None
    for alignment in alignments(run):
        if alignment.group != divergence.group:
            continue
        rows = alignment.rows[runs[alignment.rows]]
        sites = run.values("site", rows)
        for site in np.unique(sites):
            mine = rows[sites == site]
            mine = mine[calls["ordinal"][mine] <= divergence.ordinal]
            ranks = tuple(map(int, np.unique(calls["rank"][mine])))
            if not ranks or site == 0 or 2 * len(ranks) > len(alignment.group.ranks):
                continue
            n = np.searchsorted(alignment.ordinals, calls["ordinal"][mine].max())
            stray = _Stray(alignment.meeting(run, int(n)), ranks, int(site))
            if _is_stray(run, divergence, stray) and not _made_up_for(
                run, alignment, int(n), divergence.ordinal, stray
            ):
                return stray
    return None


def _is_stray(run: Run, divergence: Divergence, stray: _Stray) -> bool:
    sites = {rank: _site(run, row) for rank, row in stray.meeting.rows.items()}
    if {rank for rank in sites if sites[rank] == stray.site} != set(stray.ranks):
        return False
    rest = {sites[rank] for rank in sites if rank not in stray.ranks}
    if not rest:  # the others are gone: as it was told, they may be missed, or not
        return divergence.why is Cause.SKIPPED and divergence.culprits == stray.ranks
    return all(_knows(run, rank, site) for site in rest for rank in stray.ranks)


def _made_up_for(
    run: Run, alignment: Alignment, n: int, end: int, stray: _Stray
) -> bool:
    """Whether all ranks were again at one line of the others' before they parted."""
    rest = {_site(run, row) for row in stray.meeting.rows.values()} - {stray.site}
    for later in range(n + 1, len(alignment.ordinals)):
        meeting = alignment.meeting(run, later)
        if meeting.ordinal >= end:
            return False
        sites = {_site(run, row) for row in meeting.rows.values()}
        if len(sites) == 1 and sites <= rest:
            return True
    return False


def _site(run: Run, row: int) -> int:
    return int(run.calls["site"][row])


def _knows(run: Run, rank: int, site: int) -> bool:
    """Whether a rank calls from a line too, sooner or later."""
    rows = run.rows_of(rank)
    return bool((run.calls["site"][rows.start : rows.stop] == site).any())
