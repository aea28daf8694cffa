"""One look as plain text, and as JSON: for scripts, pipes and terminals of no kind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from distdoctor.journal.folder import as_text as with_escapes
from distdoctor.report.json import indented
from distdoctor.report.plain_text import plain
from distdoctor.watching.folded_ranks import FEW_RANKS, RankRow, rows_of
from distdoctor.watching.snapshot import Snapshot
from distdoctor.watching.snapshot_words import (
    at,
    call_of_row,
    doing_words,
    job_line,
    memory_of,
    outcome,
    pace,
    since_of,
    spread_text,
)
from distdoctor.watching.wait_tree import wait_lines

MOST_ROWS = 200
"""Of ranks that are written out."""

COLUMNS = ("rank", "does", "since", "last call", "line", "steps", "pace", "memory")

_WIDEST = {"rank": 24, "last call": 44, "line": 44, "does": 28}


def cells_of(row: RankRow) -> tuple[str, ...]:
    """The cells of a row, in the order of `COLUMNS`; none can control a terminal.

    Args:
        row: Ranks alike.
    """
    return (
        str(row),
        doing_words(row.first),
        since_of(row),
        call_of_row(row),
        at(row.first.call),
        spread_text(row.spread("steps"), ".0f"),
        pace(row),
        memory_of(row),
    )


def as_plain(snapshot: Snapshot) -> str:
    """The look as text, with a new line at its end.

    Args:
        snapshot: The look.
    """
    lines = [job_line(snapshot)]
    if words := outcome(snapshot):
        lines.append(words)
    elif snapshot.job.folder:
        lines.append(f"record: {plain(snapshot.job.folder)}")
    lines += map(plain, snapshot.remarks)
    rows = rows_of(snapshot.ranks, folded=len(snapshot.ranks) > FEW_RANKS)
    if rows:
        lines += ["", *_table([COLUMNS, *map(cells_of, rows[:MOST_ROWS])])]
    if len(rows) > MOST_ROWS:
        left = sum(len(row.ranks) for row in rows[MOST_ROWS:])
        lines.append(f"… and {left} ranks more")
    if waits := wait_lines(snapshot, 40):
        lines += ["", "who waits for whom, now", *waits]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    limits = [_WIDEST.get(name, 24) for name in COLUMNS]
    cut = [
        [short(cell, most) for cell, most in zip(row, limits, strict=True)]
        for row in rows
    ]
    used = [n for n in range(len(COLUMNS)) if any(row[n] for row in cut[1:])]
    widths = {n: max(len(row[n]) for row in cut) for n in used}
    return ["  ".join(row[n].ljust(widths[n]) for n in used).rstrip() for row in cut]


def short(text: str, most: int) -> str:
    """A text cut in its middle, where it is too long.

    Args:
        text: The text.
        most: Letters, at the most.
    """
    if len(text) <= most:
        return text
    end = (most - 1) * 2 // 3
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def as_json(snapshot: Snapshot) -> str:
    """The look as JSON, `distdoctor.watch/1`, with a new line at its end.

    Args:
        snapshot: The look.
    """
    return indented(with_escapes(msgspec.to_builtins(snapshot)))
