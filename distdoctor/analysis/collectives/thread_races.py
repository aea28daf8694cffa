"""Threads of one rank that issue on one group in whatever order they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import Cause, Divergence, where
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.memoize import memoize
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import IN_BACKWARD
from distdoctor.model.run import Rows, Run

_MAIN = 0


@dataclass(frozen=True, slots=True)
class UnorderedThreads:
    """A meeting to which ranks came by different threads.

    Attributes:
        where: Its place in the group's sequence.
        calls: Ranks, and the call that they made there, with its thread, in words.
        alike: The calls look alike, so nothing fails.
    """

    where: str
    calls: tuple[tuple[tuple[int, ...], str], ...]
    alike: bool


def race(run: Run, alignment: Alignment) -> Divergence | None:
    """The first meeting to which ranks came by different threads, in no fixed order.

    Each thread makes its own calls in the same order everywhere, and only their
    interleaving differs. Threads of autograd work while the thread that called backward
    waits for them, so they count as that one.

    Args:
        run: The run that is judged.
        alignment: The collectives of one group.

    Returns:
        The divergence, or None.
    """
    if run.partial or not _has_threads(run):
        return None
    threads = _threads(run, alignment.rows)
    if not threads.any():
        return None
    for meeting in _disagreements(run, alignment):
        for a, b in combinations(meeting.rows, 2):
            if _raced(run, alignment, threads, (meeting.rows[a], meeting.rows[b])):
                return _divergence(run, meeting, threads, alignment.rows)
    return None


@memoize
def _has_threads(run: Run) -> bool:
    """Whether any rank called by another thread than its first."""
    return bool(run.column("thread").any())


def _threads(run: Run, rows: Rows) -> NDArray[np.int32]:
    """Which thread made each call; `_MAIN` also for those of a backward pass."""
    in_backward = run.values("flags", rows) & IN_BACKWARD > 0
    threads: NDArray[np.int32] = np.where(
        in_backward, np.int32(_MAIN), run.values("thread", rows)
    )
    return threads


def _disagreements(run: Run, alignment: Alignment) -> Iterator[Meeting]:
    """Meetings of calls that differ, or of like calls from different lines."""
    chosen = np.flatnonzero(alignment.varies(run, "site") | ~alignment.equal)
    unequal = np.flatnonzero(~alignment.equal[chosen])
    # What follows the first unequal one is out of step.
    end = unequal[0] + 1 if len(unequal) else len(chosen)
    yield from alignment.meetings(run, chosen[:end])


def _raced(
    run: Run, alignment: Alignment, threads: NDArray[np.int32], met: tuple[int, int]
) -> bool:
    """Whether two calls that met belong to two threads that run side by side."""
    a, b = (run.calls[row] for row in met)
    one_line = _may_be_one_line(a["site"], b["site"])
    if one_line and a["signature"] == b["signature"]:
        return False
    here, there = (_of_rank(run, alignment, threads, row) for row in met)
    if one_line:
        return _is_overtaken(run, here, met) or _is_overtaken(run, there, met[::-1])
    owners = _owners(run, here), _owners(run, there)
    both = [one for one in owners if {a["site"], b["site"]} <= one.keys()]
    # A line that two threads run, or one thread that runs both lines, tells nothing.
    if not both or any(one[a["site"]] & one[b["site"]] for one in both):
        return False
    return _each_in_order(run, here, there)


def _may_be_one_line(a: int, b: int) -> bool:
    """Whether two calls came from one line, as far as their lines are known.

    A future's callback runs in the thread that adds it or, if the future is not
    complete yet, in one of torch's: there no line of the user's is on the stack.
    """
    return a == b or not a or not b


_Part = tuple[Rows, NDArray[np.int32]]  # one rank's calls on the group, their threads


def _of_rank(
    run: Run, alignment: Alignment, threads: NDArray[np.int32], row: int
) -> _Part:
    mine = run.values("rank", alignment.rows) == run.calls["rank"][row]
    rows, threads = alignment.rows[mine], threads[mine]
    order = np.argsort(run.calls["ordinal"][rows])
    return rows[order], threads[order]


def _owners(run: Run, part: _Part) -> dict[int, set[int]]:
    """By line, the threads that called from it."""
    owners: dict[int, set[int]] = {}
    for row, thread in zip(*part, strict=True):
        owners.setdefault(int(run.calls["site"][row]), set()).add(int(thread))
    return owners


def _is_overtaken(run: Run, part: _Part, met: tuple[int, int]) -> bool:
    """Whether a rank's other thread made, later, the call that its peer made now."""
    calls, (mine, theirs) = run.calls, met
    rows, threads = part
    own = threads[rows == mine]
    later = (calls["ordinal"][rows] > calls["ordinal"][mine]) & (threads != own)
    site = calls["site"][theirs]
    later &= (calls["site"][rows] == site) | (calls["site"][rows] == 0) | (site == 0)
    return bool(
        (later & (calls["signature"][rows] == calls["signature"][theirs])).any()
    )


def _each_in_order(run: Run, here: _Part, there: _Part) -> bool:
    """Whether the main threads, and the others, made calls from the same lines in turn.

    Where they did not, a call was left out, and no race is needed to explain it.
    """

    def lines(part: _Part, *, main: bool) -> list[int]:
        rows, threads = part
        return list(run.calls["site"][rows[(threads == _MAIN) == main]])

    for main in (True, False):
        a, b = lines(here, main=main), lines(there, main=main)
        others = {*here[1], *there[1]} - {_MAIN}
        one_each = all(len({*part[1]} - {_MAIN}) <= 1 for part in (here, there))
        if (main or (others and one_each)) and any(
            x != y for x, y in zip(a, b, strict=False)
        ):
            return False
    return True


def _divergence(
    run: Run, meeting: Meeting, threads: NDArray[np.int32], rows: Rows
) -> Divergence:
    calls = calls_at(run, meeting)
    thread_of = dict(zip(rows.tolist(), threads.tolist(), strict=True))
    by_call: dict[str, list[int]] = {}
    for rank, row in meeting.rows.items():
        who = "the main thread" if thread_of[row] == _MAIN else "another thread"
        by_call.setdefault(f"{calls[rank]} at {calls[rank].place} by {who}", [])
        by_call[f"{calls[rank]} at {calls[rank].place} by {who}"].append(rank)
    alike = len({run.calls["signature"][row] for row in meeting.rows.values()}) == 1
    return Divergence(
        why=Cause.RACE,
        group=meeting.group,
        ordinal=meeting.ordinal,
        calls=calls,
        culprits=(),
        victims=tuple(calls),
        certainty=Certainty.LIKELY,
        facts=UnorderedThreads(
            where(meeting.group, meeting.ordinal),
            tuple((tuple(ranks), call) for call, ranks in by_call.items()),
            alike,
        ),
    )
