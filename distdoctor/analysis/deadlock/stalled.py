"""A run that was ended while no rank moved: it may have hung, and nothing proves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distdoctor.analysis.deadlock.standing_ranks import standing
from distdoctor.analysis.deadlock.wait_for_graph import gone, last_issued
from distdoctor.analysis.groups.nccl_ranks import ranks_on_nccl
from distdoctor.model.events import BLOCKED, Ended
from distdoctor.model.run import Frame, Run, named

STOOD_S = 5.0
"""Of quiet in which every rank stood in communication and used no processor."""

IDLE_S = 8.0
"""Of quiet in which no rank used the processor, wherever it was."""

WORKED_S = 10.0
"""Of quiet while ranks waited for one that was at work; and thrice any before it.

A rank that saves or evaluates keeps the others waiting, too: all three are our choice,
and none makes more than an "unknown".
"""

_TIMES_LONGER = 3.0
_MOST_PLACES = 4


def stalled(run: Run) -> str:
    """That nothing moved when the run was ended, and where the ranks stood; or "".

    Args:
        run: The run.

    Returns:
        A sentence for readers.
    """
    quiet = run.quiet
    if quiet is None:
        return ""
    # Whoever has left the job, and is there and idle, may never end.
    left = {rank for rank in quiet.idle if not run.of(Ended, rank)}
    living = sorted(set(run.seen) - gone(run) | left & set(run.seen))
    if not living:
        return ""
    blocked = _blocked(run, living)
    waiting = blocked | (_ahead_on_gpus(run) & set(living))
    # A wait for a GPU uses the processor: it asks again and again.
    idle = quiet.idle | (waiting - blocked) >= set(living)
    if not (
        (idle and quiet.seconds >= (STOOD_S if len(blocked) == len(living) else IDLE_S))
        or (
            waiting
            and quiet.seconds >= max(WORKED_S, _TIMES_LONGER * quiet.longest_before)
        )
    ):
        return ""
    places = list(_places(run, living, blocked))
    more = len(places) - _MOST_PLACES
    text = "; ".join(places[:_MOST_PLACES]) + f"; and {more} more" * (more > 0)
    return f"for the last {quiet.seconds:.0f} s no rank had moved: {text}"


def whereabouts(run: Run) -> str:
    """Where processes stood that never became ranks; "" if they were not looked at.

    Args:
        run: The run that is judged.

    Returns:
        A few lines, for readers, each with the number of processes.
    """
    at: dict[str, int] = {}
    for number, stack in sorted(run.stacks.items()):
        if number < 0 and stack:
            where = _line(stack)
            at[where] = at.get(where, 0) + 1
    lines = [f"{where} ({n} processes)" if n > 1 else where for where, n in at.items()]
    return "; ".join(lines[:_MOST_PLACES])


def _blocked(run: Run, living: list[int]) -> set[int]:
    ranks = run.calls["rank"][run.with_state(*BLOCKED)]
    return set(np.unique(ranks).tolist()) & set(living)


def _ahead_on_gpus(run: Run) -> set[int]:
    """Ranks of whose calls on NCCL one was not made by all members of its group.

    There a call returns, and a wait for it, when the GPU has been told of it: whoever
    needs its result waits in another line (`loss.item()`), which no probe sees.
    """
    on_nccl = ranks_on_nccl(run)
    issued = last_issued(run)
    least = {
        group: min(issued.get((group, member), 0) for member in run.groups[group].ranks)
        for group in {group for group, _ in issued}
        if run.groups[group].ranks
    }
    return {
        rank
        for (group, rank), ordinal in issued.items()
        if rank in on_nccl and ordinal > least.get(group, ordinal)
    }


def _places(run: Run, living: list[int], blocked: set[int]) -> Iterator[str]:
    timed = standing(run, blocked)
    for one in timed:
        at = f" at {one.call.place}" if one.call.place else ""
        yield f"{named(one.ranks)} in {one.call.op}{at}"
    if not timed:
        yield from _untimed(run, blocked)
    elsewhere: dict[str, list[int]] = {}
    for rank in living:
        if rank not in blocked:
            elsewhere.setdefault(_line(run.stacks.get(rank, ())), []).append(rank)
    for where, ranks in elsewhere.items():
        yield f"{named(ranks)} {where}"


def _untimed(run: Run, blocked: set[int]) -> Iterator[str]:
    """Where ranks stand whose calls bear no times."""
    alike: dict[str, list[int]] = {}
    for row in run.with_state(*BLOCKED):
        call = run.call(int(row))
        if call.rank in blocked:
            at = f" at {call.place}" if call.place else ""
            alike.setdefault(f"{call.op}{at}", []).append(call.rank)
    for where, ranks in alike.items():
        yield f"{named(ranks)} in {where}"


def _line(stack: Sequence[Frame]) -> str:
    if not stack:
        return "in no line of yours"
    place = stack[0].place
    return f"in {place.function or 'its own code'} at {place}"
