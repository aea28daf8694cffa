"""The camps at a meeting: ranks that made the same call, and what they knew before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from distdoctor.analysis.collectives.alignment import Meeting
from distdoctor.model.events import (
    Call,
)
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class CallGroup:
    """Ranks that made the same call at a meeting, and that call on one of them."""

    ranks: tuple[int, ...]
    rank: int
    row: int
    call: Call
    rows: tuple[int, ...]  # of all of them


def calls_at(run: Run, meeting: Meeting) -> dict[int, Call]:
    """The calls of a meeting, by rank.

    Args:
        run: The run that is judged.
        meeting: The meeting.

    Returns:
        The calls of those who came.
    """
    return {rank: run.call(row) for rank, row in meeting.rows.items()}


def call_groups(run: Run, meeting: Meeting) -> list[CallGroup]:
    """The camps at a meeting, largest first.

    Args:
        run: The run that is judged.
        meeting: The meeting.

    Returns:
        Ranks of each are ascending; of two that are as large, the one with the lowest
        rank is first.
    """
    by_call: dict[int, list[int]] = {}
    for rank, row in meeting.rows.items():
        by_call.setdefault(int(run.calls["signature"][row]), []).append(rank)
    sides = [
        CallGroup(tuple(ranks), ranks[0], rows[0], run.call(rows[0]), rows)
        for ranks in map(sorted, by_call.values())
        for rows in [tuple(meeting.rows[rank] for rank in ranks)]
    ]
    return sorted(sides, key=lambda side: (-len(side.ranks), side.rank))


def knows(run: Run, rank: int, before_row: int, other_row: int) -> bool:
    """Whether a rank had made such a call, from that line, before.

    Args:
        run: The run that is judged.
        rank: The rank whose past is asked for.
        before_row: A call of that rank; what it did earlier counts.
        other_row: The call in question, of any rank.

    Returns:
        Whether line, operation and group were the same.
    """
    calls = run.calls
    start = run.rows_of(rank).start
    past, other = calls[start:before_row], calls[other_row]
    same = (past["site"] == other["site"]) & (past["op"] == other["op"])
    return bool((same & (past["group"] == other["group"])).any())


def knows_exactly(run: Run, rank: int, before_row: int, other_row: int) -> bool:
    """Whether it had made just that call, with the same arguments, before.

    Args:
        run: The run that is judged.
        rank: The rank whose past is asked for.
        before_row: A call of that rank; what it did earlier counts.
        other_row: The call in question, of any rank.

    Returns:
        Whether line, group and all arguments were the same.
    """
    calls = run.calls
    past = calls[run.rows_of(rank).start : before_row]
    other = calls[other_row]
    same = (past["site"] == other["site"]) & (past["signature"] == other["signature"])
    return bool((same & (past["group"] == other["group"])).any())


def next_on_group(run: Run, rows: Iterable[int]) -> Iterator[int]:
    """The next collectives on the same group of the ranks that went on.

    Args:
        run: The run that is judged.
        rows: Positions in `Run.calls`, of any ranks.

    Yields:
        A position for each that has such a call.
    """
    calls, ranks = run.calls, run.calls["rank"]
    for row in rows:
        end = run.rows_of(int(ranks[row])).stop
        if row + 1 == end:  # as of most ranks, where one keeps all others waiting
            continue
        later = calls[row + 1 : end]
        same = (later["group"] == calls["group"][row]) & (later["ordinal"] > 0)
        if same.any():
            yield row + 1 + int(same.argmax())


def is_same(run: Run, row: int, other: int) -> bool:
    """Whether two calls could have met and come from one line.

    Args:
        run: The run that is judged.
        row: A position in `Run.calls`.
        other: Another.

    Returns:
        Whether arguments and line are the same.
    """
    a, b = run.calls[row], run.calls[other]
    return bool(a["signature"] == b["signature"] and a["site"] == b["site"])
