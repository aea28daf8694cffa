"""The last calls of one rank, as lines for a reader."""

from __future__ import annotations

import time

from distdoctor.journal.format import RecordKind
from distdoctor.journal.texts import Tables
from distdoctor.model.operations import OPERATIONS
from distdoctor.watching.followed_rank import FollowedRank

_BECAME = {
    int(RecordKind.RETURN): "issued",
    int(RecordKind.WAIT): "waiting",
    int(RecordKind.WOKE): "done",
    int(RecordKind.RAISE): "raised",
    int(RecordKind.WAIT_RAISE): "raised",
    int(RecordKind.REFUSE): "refused",
    int(RecordKind.REISSUE): "issued",
}

_NUMBERS = 2  # cells of numbers, which end alike
_LONGEST_S = 1e7
_LONGEST_PLACE = 24


def lines_of(one: FollowedRank, tables: Tables, labels: list[str]) -> list[str]:
    """What it has called, the last call at the end.

    Args:
        one: The rank.
        tables: Of the run.
        labels: Names of groups, by their numbers in the tables.
    """
    became: dict[int, str] = {}
    recent = one.tail.recent
    for kind, call in zip(
        recent["kind"].tolist(), recent["call"].tolist(), strict=True
    ):
        if kind in _BECAME:
            became[call] = _BECAME[kind]
    cells = []
    now_ns = time.monotonic_ns()
    for made in one.tail.made:
        group = one.group(int(made["group"]))
        op = int(made["op"])
        place = tables.place("\n".join(one.text(int(made["site"])).split("\n")[:3]))
        ordinal = int(made["ordinal"])
        ago_s = (now_ns - int(made["time_ns"])) / 1e9
        cells.append(
            (
                f"{ago_s:.1f} s ago" if one.is_here and 0 <= ago_s < _LONGEST_S else "",
                str(ordinal) if 0 < ordinal < 1 << 31 else "",
                OPERATIONS[op].name if op < len(OPERATIONS) else "?",
                labels[group] if 0 <= group < len(labels) else "",
                became.get(int(made["call"]), "entered"),
                _left_out(str(place or "")),
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number < _NUMBERS else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]


def _left_out(place: str) -> str:
    """A line without the begin of its file's name, where that is long."""
    if len(place) <= _LONGEST_PLACE:
        return place
    return f"…{place[1 - _LONGEST_PLACE :]}"
