"""The last calls of one rank, as lines for a reader."""

from __future__ import annotations

from distdoctor.journal.format import RecordKind
from distdoctor.journal.texts import Tables
from distdoctor.model.operations import OPERATIONS
from distdoctor.watching.followed_rank import FollowedRank

_BECAME = {
    int(RecordKind.RETURN): "issued",
    int(RecordKind.WAIT): "waited for",
    int(RecordKind.WOKE): "done",
    int(RecordKind.RAISE): "raised",
    int(RecordKind.WAIT_RAISE): "raised",
    int(RecordKind.REFUSE): "refused",
    int(RecordKind.REISSUE): "issued",
}


def lines_of(one: FollowedRank, tables: Tables, labels: list[str]) -> list[str]:
    """What it has called, the last call at the end.

    Args:
        one: The rank.
        tables: Of the run.
        labels: Names of groups, by their numbers in the tables.
    """
    became: dict[int, tuple[str, int]] = {}
    for kind, call, at_ns in zip(
        one.tail.recent["kind"].tolist(),
        one.tail.recent["call"].tolist(),
        one.tail.recent["time_ns"].tolist(),
        strict=True,
    ):
        if kind in _BECAME:
            became[call] = _BECAME[kind], at_ns
    lines = []
    for made in one.tail.made:
        group = one.group(int(made["group"]))
        op = int(made["op"])
        place = tables.place("\n".join(one.text(int(made["site"])).split("\n")[:3]))
        word, at_ns = became.get(int(made["call"]), ("entered", 0))
        took = (at_ns - int(made["time_ns"])) / 1e6 if at_ns else None
        on = labels[group] if 0 <= group < len(labels) else ""
        ordinal = int(made["ordinal"])
        lines.append(
            f"{ordinal if 0 < ordinal < 1 << 31 else '':>6} "
            f"{OPERATIONS[op].name if op < len(OPERATIONS) else '?':<22} "
            f"{on:<14} {word:<10} "
            f"{'' if took is None else f'{took:9.1f} ms':>12}  "
            f"{place or ''}"
        )
    return lines
