"""The table of ranks as cells of text that fit a width."""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.watching.folded_ranks import RankRow
from distdoctor.watching.snapshot_words import (
    at,
    call_of_row,
    doing_words,
    memory_of,
    pace,
    since_of,
    spread_text,
)

GAP = 2
"""Columns between two cells."""

_HEAD = ("rank", "does", "since", "last call", "line", "steps")
_CALL, _LINE = 3, 4  # those that are cut first
_LEAST = 8  # letters that are left of a cell
_MOST = (24, 28, 8, 44, 60, 11, 13, 9)  # letters of each


def table_of(
    rows: Sequence[RankRow], width: int, *, by_steps: bool, of_record: bool = True
) -> list[tuple[str, ...]]:
    """The table: its head, then a tuple for each row, with cells of equal widths.

    Cells are on one line each, and none can control a terminal. A column that has
    nothing to tell is left out.

    Args:
        rows: Ranks alike.
        width: Of the whole table, gaps included.
        by_steps: The pace is told by optimizer steps, and not by calls.
        of_record: A record tells of ranks, and not their stacks alone.
    """
    head: tuple[str, ...] = (*_HEAD, "steps/s" if by_steps else "calls/s", "memory")
    if not of_record:
        head = (*head[:_CALL], "where", *head[_CALL + 1 :])
    cells = [_cells(row, by_steps) for row in rows]
    used = [n for n in range(len(head)) if any(row[n] for row in cells)]
    natural = {
        n: min(_MOST[n], max(len(row[n]) for row in (head, *cells))) for n in used
    }
    widths = _fitted(natural, width - GAP * (len(used) - 1))
    return [
        tuple(short(row[n], widths[n]).ljust(widths[n]) for n in used)
        for row in (head, *cells)
    ]


def _cells(row: RankRow, by_steps: bool) -> tuple[str, ...]:
    return (
        str(row),
        doing_words(row.first),
        since_of(row),
        call_of_row(row),
        at(row.first.call),
        spread_text(row.spread("steps"), ".0f"),
        pace(row, by_steps),
        memory_of(row),
    )


def _fitted(widths: dict[int, int], room: int) -> dict[int, int]:
    """Widths that fit: the widest of lines and calls gives way, then of all."""
    fitted = dict(widths)
    for givers in ((_CALL, _LINE), tuple(fitted)):
        while sum(fitted.values()) > room:
            wide = [n for n in givers if fitted.get(n, 0) > _LEAST]
            if not wide:
                break
            fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def short(text: str, most: int) -> str:
    """A text cut in its middle, where it is too long.

    Args:
        text: The text.
        most: Letters, at the most.
    """
    if len(text) <= most:
        return text
    end = (most - 1) * 2 // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"
