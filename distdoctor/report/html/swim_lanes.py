"""Lanes in time: what some ranks called when, and how long they waited there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from distdoctor.model.events import BLOCKED, State
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import counted, shown, shown_place
from distdoctor.report.schema import Report

_MOST_LANES = 24
_CULPRITS = 8
_LAST = 40  # calls of a lane that are drawn one by one
_BINS = 120  # of the whole run
_WIDTH = 960
_LANE = 26
_LEVELS = 4

NO_CALLS = "No calls of ranks were recorded, so nothing tells when they made them."
NO_TIMES = "Nothing tells when the calls were made."


@dataclass(frozen=True, slots=True)
class LaneBox:
    """A call, from when it was entered to its end."""

    x: float
    width: float
    kind: str  # over | waits | stopped | raised | open
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank, which may stand for others."""

    label: str
    stands_for: str
    mark: str  # culprit | victim
    y: int
    boxes: tuple[LaneBox, ...]
    loads: tuple[tuple[int, str], ...]  # by level, a path over the whole run
    remark: str


@dataclass(frozen=True, slots=True)
class SwimLanes:
    """The lanes, and what their axes say.

    Attributes:
        lanes: From the top.
        width: Of the drawing.
        height: Likewise.
        ticks: Where which time is written, of the last moments.
        whole_ticks: The same of the whole run.
        window: Begin and end of the last moments, in words.
        left_out: How many ranks no lane stands for.
        by_hosts: The times are those of clocks of several machines, maybe.
        has_more: There were calls before those that are drawn one by one.
    """

    lanes: tuple[Lane, ...]
    width: int
    height: int
    ticks: tuple[tuple[float, str], ...]
    whole_ticks: tuple[tuple[float, str], ...]
    window: str
    left_out: int
    by_hosts: bool
    has_more: bool


def swim_lanes(run: Run, report: Report) -> SwimLanes | str:
    """The lanes of a run.

    Args:
        run: What was examined.
        report: What was found.

    Returns:
        The lanes, or why there are none.
    """
    if not len(run.calls):
        return NO_CALLS
    entered = run.calls["enter_ns"]
    if not (entered > 0).any():
        return NO_TIMES
    chosen, left_out = _chosen(run, report)
    begun = int(entered[entered > 0].min())
    over = max(
        int(run.calls[name].max()) for name in ("enter_ns", "wait_ns", "complete_ns")
    )
    span = max(over - begun, 1)
    firsts = [at for rank, _ in chosen if (at := _first_of_last(run, rank))]
    has_more = any(len(run.rows_of(rank)) > _LAST for rank, _ in chosen)
    start = int(median(firsts)) if firsts and has_more else begun
    # Who waits at the end is drawn on, so that the wait is seen.
    scale = (_WIDTH - 24) / max(over - start, 1)
    culprits = {rank for one in report.findings for rank in one.ranks}
    victims = {rank for one in report.findings for rank in one.victims}
    lanes = []
    for n, (rank, others) in enumerate(chosen):
        boxes = tuple(_boxes(run, rank, start, begun, scale))
        mark = "culprit" if rank in culprits else "victim" if rank in victims else ""
        lanes.append(
            Lane(
                label=f"rank {rank}",
                stands_for=named(others) if len(others) > 1 else "",
                mark=mark,
                y=n * _LANE,
                boxes=boxes,
                loads=tuple(_loads(run, rank, begun, span, n * _LANE)),
                remark="" if boxes else _last_word(run, rank, over),
            )
        )
    return SwimLanes(
        lanes=tuple(lanes),
        width=_WIDTH,
        height=len(lanes) * _LANE,
        ticks=tuple(_ticks(start - begun, over - begun, _WIDTH - 24)),
        whole_ticks=tuple(_ticks(0, span, _WIDTH)),
        window=f"{(start - begun) / 1e9:.3f} s to {(over - begun) / 1e9:.3f} s",
        left_out=left_out,
        by_hosts=run.calls_from == "dump",
        has_more=has_more,
    )


def _chosen(run: Run, report: Report) -> tuple[list[tuple[int, tuple[int, ...]]], int]:
    """Ranks with a lane, each with those that it stands for, and how many have none."""
    having = [rank for rank in run.seen if run.rows_of(rank)]
    if len(having) <= _MOST_LANES:
        return [(rank, (rank,)) for rank in having], 0
    culprits = [rank for one in report.findings for rank in one.ranks]
    own = [r for r in dict.fromkeys(culprits) if run.rows_of(r)][:_CULPRITS]
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank in having:
        if rank not in own:
            mine = run.rows_of(rank)
            last = run.calls[["signature", "site", "state"]][mine[-1]]
            alike.setdefault((len(mine), *last.tolist()), []).append(rank)
    groups = sorted(alike.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    kept = groups[: _MOST_LANES - len(own)]
    chosen: list[tuple[int, tuple[int, ...]]] = [(rank, (rank,)) for rank in own]
    chosen += [(ranks[0], tuple(ranks)) for ranks in kept]
    told = sum(len(ranks) for _, ranks in chosen)
    return sorted(chosen), len(having) - told


def _first_of_last(run: Run, rank: int) -> int:
    """When a rank entered the first of its last calls; 0: nobody knows."""
    return int(run.calls["enter_ns"][run.rows_of(rank)[-_LAST:][0]])


def _boxes(
    run: Run, rank: int, start: int, begun: int, scale: float
) -> Iterator[LaneBox]:
    """The last calls of a rank, as far as they reach into the last moments."""
    for row in run.rows_of(rank)[-_LAST:]:
        record = run.calls[row]
        entered, ended = int(record["enter_ns"]), int(record["complete_ns"])
        state = State(int(record["state"]))
        blocked = state in BLOCKED
        left = (max(entered, start) - start) * scale
        if not entered or (max(ended, entered) < start and not blocked):
            continue
        if blocked:
            right = float(_WIDTH)
        else:
            right = (max(ended, entered, start) - start) * scale
        kind = _KINDS.get(state, "open")
        if kind == "over" and not ended:
            kind = "open"
        yield LaneBox(
            x=round(left, 1),
            width=round(max(right - left, 1.5), 1),
            kind=kind,
            title=_title(run, row, entered - begun, ended and ended - entered),
        )


_KINDS = {
    State.DONE: "over",
    State.INSIDE: "waits",
    State.WAITING: "waits",
    State.REFUSED: "stopped",
    State.RAISED: "raised",
}

_ENDS = {
    "waits": "waits in it at the end",
    "stopped": "stopped by distdoctor before it was issued",
    "raised": "ended with an exception",
    "open": "nobody saw it end",
}


def _title(run: Run, row: int, since_ns: int, took_ns: int) -> str:
    call = run.call(row)
    kind = _KINDS.get(call.state, "open")
    number = f"call {call.ordinal} on {shown(call.group, 60)}, " if call.ordinal else ""
    end = _ENDS.get(kind) or (
        f"took {took_ns / 1e6:.1f} ms" if took_ns > 0 else _ENDS["open"]
    )
    place = shown_place(call.place)
    at = f" at {place}" if place else ""
    return f"{shown(str(call), 120)}{at}: {number}at {since_ns / 1e9:.3f} s, {end}"


def _loads(
    run: Run, rank: int, begun: int, span: int, y: int
) -> Iterator[tuple[int, str]]:
    """How many calls a rank entered when, in a few levels, as one path for each."""
    mine = run.rows_of(rank)
    entered = run.calls["enter_ns"][mine.start : mine.stop]
    entered = entered[entered > 0]
    places = np.minimum((entered - begun) * _BINS // max(span, 1), _BINS - 1)
    counts = np.bincount(places, minlength=_BINS)
    highest = max(int(counts.max(initial=0)), 1)
    levels = -(-counts * _LEVELS // highest)  # rounded up: one call is seen, too
    wide = _WIDTH // _BINS
    for level in range(1, _LEVELS + 1):
        here = np.flatnonzero(levels == level).tolist()
        if here:
            path = "".join(
                f"M{n * wide} {y + 4}h{wide}v{_LANE - 8}h-{wide}z" for n in here
            )
            yield level, path


def _last_word(run: Run, rank: int, over: int) -> str:
    mine = run.rows_of(rank)
    last = int(run.calls["enter_ns"][mine[-1]])
    operation = OPERATIONS[run.calls["op"][mine[-1]]].name
    if not last:
        return f"{counted(len(mine), 'call')}, without times"
    return f"its last call, {operation}, was {(over - last) / 1e9:.1f} s before the end"


def _ticks(begin: int, end: int, width: int) -> Iterable[tuple[float, str]]:
    """Round times between two, and where they are."""
    span = max(end - begin, 1)
    step = next((one for one in _STEPS_NS if span / one <= 8), _STEPS_NS[-1])
    while span / step > 8:
        step *= 2
    digits = 0 if step >= 10**9 else 1 if step >= 10**8 else 3
    at = -(-begin // step) * step
    while at <= end:
        yield round((at - begin) / span * width, 1), f"{at / 1e9:,.{digits}f} s"
        at += step


_STEPS_NS: Sequence[int] = [
    factor * 10**power for power in range(6, 13) for factor in (1, 2, 5)
]
