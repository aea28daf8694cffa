"""Ranks that a branch by rank keeps from all that the others are doing.

A message that nobody answers is the first that shows of it where stages of a pipeline
talk to their neighbours, though its collectives were left out as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.analysis.divergence.parting_branches import (
    BranchParting,
    GivenCalls,
    Sides,
    chains,
    of_group,
    program_of,
)
from distdoctor.analysis.divergence.rank_guards import GUARD, lines
from distdoctor.analysis.source.conditions import Condition, conditions
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class KeptFromMessage:
    """A condition that keeps one rank from what all others do behind it.

    Attributes:
        condition: In the words of the source.
        place: Its line.
        stands: The call in which the rank is.
        waits: A call in which another rank waits behind the condition.
    """

    condition: str
    place: Place
    stands: Call
    waits: Call


def kept_out(run: Run, divergence: Divergence) -> Divergence:
    """A message without its other side, told as the branch that keeps a rank from it.

    The rank stands in a collective, all others are in functions behind that branch, and
    it has never been there.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is not so.
    """
    if (
        divergence.why is not Cause.UNANSWERED
        or len(divergence.culprits) != 1
        or not run.sources
    ):
        return divergence
    (rank,) = divergence.culprits
    stands = _standing(run, rank)
    others = of_group(run.seen, (rank,))
    found_at = [_standing(run, other) for other in others]
    waiting = [call for call in found_at if call is not None]
    if stands is None or len(waiting) < len(others):
        return divergence  # where some are is not known: they compute, or have ended
    if OPERATIONS[CODE_OF[stands.op]].is_point_to_point:
        return divergence  # the others answer that by a branch of their own
    found = _behind(run, waiting, rank)
    if found is None:
        return divergence
    call = waiting[0]
    return replace(
        divergence,
        why=Cause.SKIPPED,
        certainty=Certainty.LIKELY,
        victims=others,
        elsewhere=lines(found, (rank,), few=False),
        remarks=f" The way there: {found.way()}.",
        facts=KeptFromMessage(
            str(found.condition), found.condition.place, stands, call
        ),
        details={**divergence.details, GUARD: str(found.condition), "way": found.way()},
    )


def _standing(run: Run, rank: int) -> Call | None:
    waits = standstill(run).waits.get(rank, ())
    return run.call(waits[0].row) if waits else None


def _behind(run: Run, waiting: list[Call], rank: int) -> BranchParting | None:
    """The outermost branch that lets those pass who wait, and the rank alone not."""
    ways = [chains(run, call) for call in waiting]
    if any(len(found) != 1 for found in ways):
        return None
    chain, *others = [found[0] for found in ways]
    sides = Sides(run, [call.rank for call in waiting], [rank])
    for at, place in enumerate(chain[:-1]):
        function = sides.program.at(place.file, place.line)
        if function is None:
            continue
        given = GivenCalls(chain, at)
        for condition in conditions(function, place.line):
            if (
                sides.parts(condition, given)
                and all(_is_behind(run, condition, way) for way in others)
                and not any(_is_behind(run, condition, way) for way in _been(run, rank))
            ):
                few = sides.singles_out(condition, given)
                return BranchParting(condition, chain, at, few, has_counterpart=False)
    return None


def _is_behind(run: Run, condition: Condition, way: Sequence[Place]) -> bool:
    """Whether a way leads through the function of a condition, past that condition."""
    program, function = program_of(run), condition.function
    return any(
        program.at(place.file, place.line) is function
        and condition in conditions(function, place.line)
        for place in way
    )


def _been(run: Run, rank: int) -> Iterator[tuple[Place, ...]]:
    """The different ways of all calls that a rank has made."""
    rows = run.rows_of(rank)
    for site, callers in np.unique(
        run.calls[["site", "callers"]][rows.start : rows.stop]
    ).tolist():
        line = run.sites[site]
        yield run.callers[callers] if line is None else (line, *run.callers[callers])
