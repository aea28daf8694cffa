"""Whether one rank went through fewer rounds of a loop than another.

Three kinds of evidence, best first: the DataLoader that ended, the forward passes made
(nodes of the autograd graph), the loop that a stack is no longer in.
"""

from __future__ import annotations

import numpy as np

from distdoctor.analysis.causes import LEFT_LOOP, at, pointers
from distdoctor.analysis.collectives.call_groups import CallGroup
from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.passing import came_past
from distdoctor.analysis.divergence.unequal_rounds import FewerBatches, FewerRounds
from distdoctor.analysis.divergence.uneven_loops import dealt_out
from distdoctor.model.events import (
    Batch,
)
from distdoctor.model.run import Run


def fewer_rounds(
    run: Run, major: CallGroup, minor: CallGroup
) -> dict[str, object] | None:
    """Evidence that one camp went through fewer rounds of a loop than the other.

    Args:
        run: The run that is judged.
        major: The camp that went further.
        minor: The other camp.

    Returns:
        Fields of a `Divergence`, by name; None if there is no evidence.
    """
    batches = _ended_loader(run, minor.rank, minor.row)
    if batches is not None:
        others = [
            event
            for event in run.of(Batch, major.rank)
            if event.place == batches.place and not event.ended
        ]
        begun = others[-1].count if others else 0
        if others and begun <= batches.count:
            # Ranks that are a batch apart may meet all the same, until the last pass.
            batches, begun = _uneven_pass(run, major, minor, batches) or (batches, 0)
        if begun > batches.count:
            return {
                "cause": batches,
                "elsewhere": at(batches, minor.ranks, "its loader ended here"),
                "facts": FewerBatches(
                    minor.ranks,
                    batches,
                    major.ranks,
                    begun,
                    major.call.op,
                    next_op=minor.call.op,
                ),
            }
        if others:
            return None  # as many batches: it skipped the call, not the round
    if _kept_pace(run, major, minor):
        return None
    loop = loop_positions.left(run, major.rank, minor.rank)
    if loop is None or loop[1]:
        return None
    place = loop[0].place
    return {
        "elsewhere": (
            *pointers(
                loop_positions.ways_out(run, place),
                minor.ranks,
                "a way out of the loop",
            ),
            *pointers([place], minor.ranks, LEFT_LOOP),
            *dealt_out(run, place, minor.ranks),
        ),
        "facts": FewerRounds(
            minor.ranks, place, minor.call, major.ranks, major.call.op
        ),
    }


def _uneven_pass(
    run: Run, major: CallGroup, minor: CallGroup, last: Batch
) -> tuple[Batch, int] | None:
    """The first pass over a loader that had fewer batches here than there.

    Returns:
        Its end here, and how many batches it had there.
    """
    here, there = (
        [one for one in run.of(Batch, rank) if one.place == last.place and one.ended]
        for rank in (minor.rank, major.rank)
    )
    for mine, theirs in zip(here, there, strict=False):
        if mine.count != theirs.count:
            return (mine, theirs.count) if mine.count < theirs.count else None
    return None


def passed_over(run: Run, major: CallGroup, minor: CallGroup) -> bool:
    """Whether a camp is past the other's call with no fewer rounds made.

    Args:
        run: The run that is judged.
        major: The other camp.
        minor: The camp that is asked about.

    Returns:
        Whether it is known to be.
    """
    if loop_positions.is_further(run, major.rank, minor.rank) or came_past(
        run, major.call, minor.call
    ):
        return True
    loop = loop_positions.left(run, major.rank, minor.rank)
    return loop is not None and (loop[1] or _kept_pace(run, major, minor))


def _kept_pace(run: Run, major: CallGroup, minor: CallGroup) -> bool:
    """Whether a camp made as many forward passes as the other up to here.

    Then it went through the round and left out its calls. Counted in nodes of the
    autograd graph: half a round's worth is the margin.
    """
    theirs, mine = _nodes(run, major.row), _nodes(run, minor.row)
    if theirs is None or mine is None:
        return False
    round_nodes = _nodes_of_a_round(run, major)
    return round_nodes > 0 and theirs - mine < round_nodes / 2


def _nodes(run: Run, row: int) -> int | None:
    """Autograd nodes made between a rank's first call and this one."""
    calls = run.calls
    first = run.rows_of(int(calls["rank"][row])).start
    if calls["thread"][first] != calls["thread"][row]:
        return None
    return int(calls["nodes"][row]) - int(calls["nodes"][first])


def _nodes_of_a_round(run: Run, side: CallGroup) -> int:
    """What a forward pass adds, typically: the median of all increases."""
    nodes = run.calls["nodes"][run.rows_of(side.rank).start : side.row + 1]
    added = np.diff(nodes)
    return int(np.median(added[added > 0])) if (added > 0).any() else 0


def _ended_loader(run: Run, rank: int, row: int) -> Batch | None:
    """The loader that ended between a rank's last call and the one at `row`."""
    position = row - run.rows_of(rank).start
    ended = [
        event
        for at, event in run.told(Batch, rank=rank)
        if event.ended and at == position
    ]
    return ended[-1] if ended else None
