"""Maps of ranks and calls: who made which collective of a group as the others did.

A column is a collective of one group, a row a rank. Where there are many of either,
neighbours share a cell, which shows the worst of them; the last calls always have
columns of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.collectives.alignment import Alignment, alignments
from distdoctor.model.events import SETUP, State
from distdoctor.model.operations import NOT_SEEN
from distdoctor.model.run import Run, named
from distdoctor.report.html.map_words import summary
from distdoctor.report.html.shown_text import shown, shown_place
from distdoctor.report.schema import Report

MADE, ISSUED, UNSEEN, WAITS, ABSENT, STOPPED, RAISED, SPLIT, ODD = range(9)

CELL_WORDS = (
    "made as by most, and over",
    "made as by most, not known to be over",
    "nothing is known of the rank",
    "waits in it",
    "no such call was seen",
    "stopped by distdoctor before it was issued",
    "ended with an exception",
    "ranks differ, and neither side is the most",
    "another call than that of most ranks",
)
"""What a cell says, by its number; of several that share a cell the highest counts."""

CELL_NAMES = (
    *("made", "issued", "unseen", "waits", "absent"),
    *("stopped", "raised", "split", "odd"),
)
"""Names of the same for styles."""

_CODE_OF = np.full(256, ISSUED, np.uint8)
_CODE_OF[int(State.DONE)] = MADE
_CODE_OF[[int(State.INSIDE), int(State.WAITING)]] = WAITS
_CODE_OF[int(State.RAISED)] = RAISED
_CODE_OF[int(State.REFUSED)] = STOPPED

_STATE_WORDS = {
    State.INSIDE: ", waits in it",
    State.WAITING: ", waits in it",
    State.RAISED: ", ended with an exception",
    State.REFUSED: ", stopped before it was issued",
}

MOST_ROWS = 64
_LAST = 48  # columns of one call each
_EARLIER = 72  # columns of several calls
_MOST_MAPS = 6


@dataclass(frozen=True, slots=True)
class MapRow:
    """Ranks that share a row."""

    ranks: tuple[int, ...]
    y: int
    height: int
    label: str
    mark: str = ""  # culprit | victim


@dataclass(frozen=True, slots=True)
class CallMap:
    """One group's map.

    Attributes:
        group: Its name.
        members: How many ranks it has.
        rows: From the top.
        columns: Of each, the first and the last ordinal.
        cells: One row of numbers for each row; see `CELL_WORDS`.
        texts: What is told of single cells; the first is empty.
        told: By row and column, the number of its text.
        shapes: Name of a kind of cell, and the path that draws all of its kind.
        xs: Left edges of the columns, and the right edge of the last.
        summary: All of it in words.
        notes: What the map leaves out.
        present: Kinds of cells that there are, as name and words.
    """

    group: str
    members: int
    rows: tuple[MapRow, ...]
    columns: tuple[tuple[int, int], ...]
    cells: tuple[str, ...]
    texts: tuple[str, ...]
    told: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[str, str], ...]
    xs: tuple[int, ...]
    summary: str
    notes: tuple[str, ...]
    present: tuple[tuple[str, str], ...]

    @property
    def is_uneventful(self) -> bool:
        """All ranks made all calls alike, and there is nothing to see."""
        return {name for name, _ in self.present} <= {"made", "issued"}

    @property
    def seams(self) -> str:
        """A path of lines between columns; none where these are narrow."""
        if len(self.columns) > _LAST:
            return ""
        return "".join(f"M{x} 0V{self.height}" for x in self.xs[1:-1])

    @property
    def width(self) -> int:
        """Of the drawing."""
        return self.xs[-1]

    @property
    def height(self) -> int:
        """Of the drawing."""
        return self.rows[-1].y + self.rows[-1].height

    @property
    def ticks(self) -> list[tuple[int, int]]:
        """Where which ordinal is written below the map."""
        chosen: list[tuple[int, int]] = []
        for (first, _), left in zip(self.columns, self.xs, strict=False):
            if not chosen or left - chosen[-1][0] >= 80:
                chosen.append((left, first))
        return chosen


def call_maps(run: Run, report: Report) -> list[CallMap]:
    """The maps of the groups that matter most: those of findings, then the busiest.

    Args:
        run: What was examined.
        report: What was found.

    Returns:
        At most a few; none if no group of several ranks made collectives.
    """
    found = [one for one in alignments(run) if len(one.rows)]
    accused = [str(one.details.get("group")) for one in report.findings]
    order = {name: n for n, name in reversed(list(enumerate(accused)))}
    found.sort(
        key=lambda one: (
            order.get(one.group.name, len(accused)),
            one.group.name == SETUP,
            bool(one.equal.all()),
            -len(one.rows),
        )
    )
    marks: dict[int, str] = {}
    for finding in report.findings:
        marks |= {rank: "victim" for rank in finding.victims if rank not in marks}
        marks |= dict.fromkeys(finding.ranks, "culprit")
    return [_map(run, one, marks) for one in found[:_MOST_MAPS]]


def left_out(run: Run) -> int:
    """How many groups with collectives have no map, because there are too many."""
    return max(0, sum(bool(len(one.rows)) for one in alignments(run)) - _MOST_MAPS)


def _map(run: Run, aligned: Alignment, marks: dict[int, str]) -> CallMap:
    columns, column_of = _columns(aligned.ordinals)
    codes = _codes(run, aligned)
    members = list(aligned.group.ranks)
    cells = _cells(run, aligned, codes, members, column_of, len(columns))
    parts = _rows(cells, members)
    rows, merged, y = [], [], 0
    height = _height(len(parts))
    for part in parts:
        ranks = tuple(members[n] for n in part)
        of_rows = {marks.get(rank, "") for rank in ranks}
        mark = "culprit" if "culprit" in of_rows else max(of_rows)
        rows.append(MapRow(ranks, y, height, named(ranks), mark))
        merged.append(cells[part].max(axis=0))
        y += height
    grid = np.stack(merged)
    xs = _edges(columns)
    texts, told = _texts(run, aligned, codes, column_of, rows, columns)
    kinds = sorted({int(code) for code in np.unique(grid)})
    return CallMap(
        group=shown(aligned.group.name, 80),
        members=len(members),
        rows=tuple(rows),
        columns=columns,
        cells=tuple("".join(map(str, row.tolist())) for row in grid),
        texts=texts,
        told=told,
        shapes=tuple((CELL_NAMES[code], _path(grid, code, rows, xs)) for code in kinds),
        xs=xs,
        summary=summary(run, aligned),
        notes=tuple(_notes(aligned, len(rows), len(columns))),
        present=tuple((CELL_NAMES[code], CELL_WORDS[code]) for code in kinds),
    )


def _height(rows: int) -> int:
    return 18 if rows <= 24 else 12 if rows <= 40 else 9


def _columns(
    ordinals: NDArray[np.int64],
) -> tuple[tuple[tuple[int, int], ...], NDArray[np.intp]]:
    """First and last ordinal of each column, and the column of each meeting."""
    count = len(ordinals)
    if count <= _LAST + _EARLIER:
        column_of = np.arange(count)
    else:
        early = count - _LAST
        column_of = np.arange(count) - early + _EARLIER
        column_of[:early] = np.arange(early) * _EARLIER // early
    starts = np.flatnonzero(np.diff(column_of, prepend=-1))
    ends = np.append(starts[1:], count) - 1
    firsts, lasts = ordinals[starts].tolist(), ordinals[ends].tolist()
    return tuple(zip(firsts, lasts, strict=True)), column_of


def _codes(run: Run, aligned: Alignment) -> NDArray[np.uint8]:
    """What each call of the alignment says."""
    codes: NDArray[np.uint8] = _CODE_OF[run.values("state", aligned.rows)]
    unequal = ~aligned.equal[aligned.at]
    if unequal.any():
        chosen = np.flatnonzero(unequal)
        codes[chosen] = np.maximum(codes[chosen], _odd(run, aligned, chosen))
    return codes


def _odd(run: Run, aligned: Alignment, chosen: Any) -> NDArray[np.uint8]:
    """Of calls in meetings that were not made alike: who is in the minority."""
    at = aligned.at[chosen]
    signatures = run.calls["signature"][aligned.rows[chosen]]
    order = np.lexsort((signatures, at))
    at, signatures = at[order], signatures[order]
    begins = np.ones(len(at), np.bool_)
    begins[1:] = (at[1:] != at[:-1]) | (signatures[1:] != signatures[:-1])
    kind = np.cumsum(begins) - 1
    seen = signatures != NOT_SEEN
    sizes = np.bincount(kind, weights=seen).astype(np.int64)
    whole = np.zeros(int(at.max()) + 1, np.int64)
    np.add.at(whole, at, seen)
    most = 2 * sizes[kind] > whole[at]
    has_most = np.zeros(len(whole), np.bool_)
    has_most[at[most]] = True
    found = np.where(has_most[at], ODD, SPLIT).astype(np.uint8)
    found[most | ~seen] = MADE
    back = np.empty_like(found)
    back[order] = found
    return back


def _cells(
    run: Run,
    aligned: Alignment,
    codes: NDArray[np.uint8],
    members: Sequence[int],
    column_of: NDArray[np.intp],
    width: int,
) -> NDArray[np.uint8]:
    """One row for each member, one column for each column of the map."""
    row_of = np.zeros(run.world_size, np.intp)
    row_of[members] = np.arange(len(members))
    rows = row_of[run.values("rank", aligned.rows)]
    places = rows * width + column_of[aligned.at]
    flat = np.zeros(len(members) * width, np.uint8)
    np.maximum.at(flat, places, codes)
    made = np.bincount(places, minlength=len(flat)).reshape(len(members), width)
    cells = flat.reshape(len(members), width)
    expected = np.bincount(column_of, minlength=width)
    short = made < expected
    cells[short] = np.maximum(cells[short], ABSENT)
    cells[[rank in run.unseen for rank in members]] = UNSEEN
    return cells


def _rows(cells: NDArray[np.uint8], members: Sequence[int]) -> list[list[int]]:
    """Members of each row: one each, or neighbours that did the same, or neighbours."""
    if len(members) <= MOST_ROWS:
        return [[n] for n in range(len(members))]
    parts: list[list[int]] = []
    for n in range(len(members)):
        if parts and (cells[n] == cells[n - 1]).all():
            parts[-1].append(n)
        else:
            parts.append([n])
    if len(parts) <= MOST_ROWS:
        return parts
    bounds = np.linspace(0, len(members), MOST_ROWS + 1).astype(int).tolist()
    return [list(range(begin, end)) for begin, end in pairwise(bounds) if end > begin]


def _edges(columns: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Left edges; a call alone is wider than one among others, with a gap between."""
    wide = 28 if len(columns) <= 24 else 16 if len(columns) <= _LAST else 9
    edges = [0]
    for first, last in columns:
        edges.append(edges[-1] + (wide if first == last else 5))
    return tuple(edges)


def _path(
    grid: NDArray[np.uint8], code: int, rows: Sequence[MapRow], xs: Sequence[int]
) -> str:
    """One path for all cells of a kind; neighbours in a row are one rectangle."""
    parts = []
    for line, row in zip(grid, rows, strict=True):
        here = np.concatenate(([False], line == code, [False]))
        edges = np.flatnonzero(here[1:] != here[:-1]).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            left, right = xs[begin], xs[end]
            parts.append(f"M{left} {row.y}h{right - left}v{row.height}H{left}z")
    return "".join(parts)


def _texts(
    run: Run,
    aligned: Alignment,
    codes: NDArray[np.uint8],
    column_of: NDArray[np.intp],
    rows: Sequence[MapRow],
    columns: Sequence[tuple[int, int]],
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """What the calls of the last columns were; by row and column, a text's number.

    Of several calls in a cell, that is told which the cell shows.
    """
    texts: dict[str, int] = {"": 0}
    told = np.zeros((len(rows), len(columns)), np.int64)
    known: dict[tuple[int, ...], int] = {}
    single = [n for n, (first, last) in enumerate(columns) if first == last][-_LAST:]
    begin = int(np.searchsorted(column_of, single[0])) if single else len(column_of)
    chosen = np.flatnonzero(aligned.at >= begin)
    lines = np.zeros(run.world_size, np.intp)
    for n, row in enumerate(rows):
        lines[list(row.ranks)] = n
    at_rows = aligned.rows[chosen]
    cell = lines[run.calls["rank"][at_rows]] * len(columns)
    cell += column_of[aligned.at[chosen]]
    order = np.lexsort((-codes[chosen].astype(np.int64), cell))
    cells, first = np.unique(cell[order], return_index=True)
    for place, row in zip(cells.tolist(), at_rows[order[first]].tolist(), strict=True):
        record = run.calls[row]
        key = tuple(
            int(record[name]) for name in ("op", "spec", "site", "peer", "state")
        )
        if key not in known:
            call = run.call(row)
            where = shown_place(call.place)
            text = shown(str(call), 160) + (f" at {where}" if where else "")
            text += _STATE_WORDS.get(call.state, "")
            known[key] = texts.setdefault(text, len(texts))
        told.flat[place] = known[key]
    return tuple(texts), tuple(tuple(line) for line in told.tolist())


def _notes(aligned: Alignment, rows: int, columns: int) -> Iterator[str]:
    lowest = int(aligned.ordinals[0])
    if lowest > 1:
        yield (f"Calls before {lowest:,} are not kept of all ranks, and are left out.")
    if len(aligned.ordinals) > columns:
        yield (
            f"The last {_LAST} calls have a column each; the calls before them share "
            f"{columns - _LAST} columns, each of which shows the worst of its calls."
        )
    if len(aligned.group.ranks) > rows:
        yield (
            "Neighbouring ranks that did the same share a row."
            if rows < MOST_ROWS
            else "Neighbouring ranks share a row, which shows the worst of them."
        )
