"""The wait-for graph as a picture: who stands where, and for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from distdoctor.analysis.collectives.alignment import alignments
from distdoctor.analysis.deadlock.recorded_waits import recorded_waits
from distdoctor.analysis.deadlock.wait_for_graph import Wait, gone, standstill
from distdoctor.model.events import BLOCKED, State
from distdoctor.model.run import Run, named
from distdoctor.report.html.box_layout import arrow, box_places
from distdoctor.report.html.shown_text import shown, shown_place
from distdoctor.report.schema import Report

_MOST_NODES = 16
_MOST_ROWS = 64
NOBODY = "No rank was seen to wait in a call of communication at the end."
NO_CALLS_SEEN = "No calls of ranks were recorded, so nothing tells who waits."
NOT_KNOWN = (
    "Ranks stand in calls of communication, and nothing shows that those whom they "
    "wait for will never come."
)


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Ranks that stand at the same, or are waited for alike."""

    ranks: tuple[int, ...]
    label: str
    doing: str
    at: str
    kind: str  # waits | gone | free | unseen
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """That the ranks of one node wait for those of another."""

    begin: int  # numbers of nodes
    end: int
    how: str  # all | any | unmet
    path: str


@dataclass(frozen=True, slots=True)
class WaitPicture:
    """The graph.

    Attributes:
        nodes: With their places.
        edges: Between them.
        width: Of the drawing.
        height: Likewise.
        lead: What it shows, in words.
        rows: The same as a table: who, in what, where, for whom.
        left_out: Nodes that are not drawn.
    """

    nodes: tuple[WaitNode, ...]
    edges: tuple[WaitEdge, ...]
    width: int
    height: int
    lead: str
    rows: tuple[tuple[str, str, str, str], ...]
    left_out: int


_FOR_EVER = "These ranks can never go on, by what they themselves were seen to do."
_AT_THE_END = (
    "So the ranks stood at the end, as far as was seen; the picture alone does not "
    "prove that they would have stood so for ever."
)
_IN_DUMPS = (
    "So the ranks stood when the dumps were made, as far as these tell; the picture "
    "alone does not prove that they would have stood so for ever."
)


def wait_picture(run: Run, report: Report) -> WaitPicture | str:
    """The picture of a run.

    Args:
        run: What was examined.
        report: What was found.

    Returns:
        The picture, or why there is none.
    """
    still = standstill(run)
    waits: Mapping[int, Sequence[Wait]] = still.waits
    lead = _AT_THE_END
    is_whole = not (run.partial or run.faltered or run.simulated)
    if report.verdict == "sick" and is_whole and not still.by_send:
        lead = _FOR_EVER
    if not waits and run.calls_from != "run":
        recorded = recorded_waits(run)
        waits = {**_mismatched(run, recorded.complete), **recorded.all}
        lead = _IN_DUMPS
    if not len(run.calls) and not waits:
        return NO_CALLS_SEEN
    if not waits:
        return NOT_KNOWN if len(run.with_state(*BLOCKED)) else NOBODY
    return _picture(run, waits, lead)


_Target: TypeAlias = tuple[frozenset[int], str]
"""Ranks that are waited for, and how: "all" are needed, or "any" of them; "unmet":
they make another call there, so that the two cannot meet."""


def _mismatched(run: Run, rows: Sequence[int]) -> dict[int, tuple[Wait, ...]]:
    """Who stands in a call that all members of its group have made, and not alike."""
    unmet = _Unmet(run)
    calls = run.calls["rank"][list(rows)].tolist()
    return {
        rank: (Wait(rank, row, frozenset({rank})),)
        for rank, row in zip(calls, rows, strict=True)
        if unmet.of(row)[1] == "unmet" and unmet.of(row)[0]
    }


@dataclass(frozen=True, slots=True)
class _Stand:
    """Ranks with the same waits."""

    ranks: tuple[int, ...]
    waits: tuple[Wait, ...]
    targets: tuple[_Target, ...]


def _picture(run: Run, waits: Mapping[int, Sequence[Wait]], lead: str) -> WaitPicture:
    stands = _stands(run, waits)
    waiting = {rank for one in stands for rank in one.ranks}
    awaited = {r for one in stands for missing, _ in one.targets for r in missing}
    others = _others(run, awaited - waiting)
    parts = [(one.ranks, "waits") for one in stands] + others
    shown_parts = parts[:_MOST_NODES]
    edges = sorted(_edges(stands, shown_parts))
    pairs = {(a, b) for a, b, _ in edges}
    places, width, height = box_places(len(shown_parts), pairs, len(stands))
    nodes = []
    for n, (ranks, kind) in enumerate(shown_parts):
        doing, at = _OTHER.get(kind, ""), ""
        if n < len(stands):
            doing, at = _doing(run, stands[n].waits)
        nodes.append(WaitNode(ranks, _short(ranks), doing, at, kind, *places[n]))
    return WaitPicture(
        nodes=tuple(nodes),
        edges=tuple(
            WaitEdge(a, b, how, arrow(places[a], places[b], is_bent=(b, a) in pairs))
            for a, b, how in edges
        ),
        width=width,
        height=height,
        lead=lead,
        rows=tuple(_rows(run, stands)),
        left_out=len(parts) - len(shown_parts),
    )


_OTHER = {
    "gone": "ended, or left the job",
    "free": "not seen to wait",
    "unseen": "nothing is known of it",
}


def _stands(run: Run, waits: Mapping[int, Sequence[Wait]]) -> list[_Stand]:
    """Ranks that wait alike together; the largest such part first."""
    alike: dict[tuple[object, tuple[_Target, ...]], list[int]] = {}
    unmet = _Unmet(run)
    for rank, each in sorted(waits.items()):
        calls = tuple(
            tuple(run.calls[["op", "group", "site", "state"]][one.row].tolist())
            for one in each
        )
        key = calls, _targets(rank, each, unmet)
        alike.setdefault(key, []).append(rank)
    found = [
        _Stand(tuple(ranks), tuple(waits[ranks[0]]), targets)
        for (_, targets), ranks in alike.items()
    ]
    return sorted(found, key=lambda one: (-len(one.ranks), one.ranks))


def _targets(rank: int, waits: Sequence[Wait], unmet: _Unmet) -> tuple[_Target, ...]:
    """Whom a rank waits for; who waits for itself alone had its call stopped."""
    found = []
    for one in waits:
        if one.missing == {rank}:
            others, how = unmet.of(one.row)
            found.append((others - {rank}, how))
        else:
            found.append((one.missing - {rank}, "any" if one.any_of else "all"))
    return tuple(each for each in found if each[0])


class _Unmet:
    """Who makes another call, or none, where some ranks stand in one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[tuple[int, ...], _Target] = {}

    def of(self, row: int) -> _Target:
        """Those ranks; none where the call is no collective of several ranks."""
        record = self._run.calls[row]
        names = ("group", "ordinal", "signature")
        key = tuple(int(record[name]) for name in names)
        if key not in self._known:
            self._known[key] = self._of(*key)
        return self._known[key]

    def _of(self, group: int, ordinal: int, signature: int) -> _Target:
        name = self._run.groups[group].name
        aligned = next((a for a in alignments(self._run) if a.group.name == name), None)
        if aligned is None:
            return frozenset(), "unmet"
        n = int(np.searchsorted(aligned.ordinals, ordinal))
        if n == len(aligned.ordinals) or aligned.ordinals[n] != ordinal:
            return frozenset(), "unmet"
        meeting = aligned.meeting(self._run, n)
        signatures = self._run.calls["signature"]
        others = frozenset(
            rank for rank, at in meeting.rows.items() if signatures[at] != signature
        )
        return (others, "unmet") if others else (frozenset(meeting.absent), "all")


def _others(run: Run, ranks: set[int]) -> list[tuple[tuple[int, ...], str]]:
    ended = gone(run)
    by_kind: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        kind = "unseen" if rank in run.unseen else "gone" if rank in ended else "free"
        by_kind.setdefault(kind, []).append(rank)
    return [(tuple(some), kind) for kind, some in by_kind.items()]


def _edges(
    stands: Sequence[_Stand], parts: Sequence[tuple[tuple[int, ...], str]]
) -> set[tuple[int, int, str]]:
    found = set()
    members = [frozenset(ranks) for ranks, _ in parts]
    for n, one in enumerate(stands[: len(parts)]):
        for missing, how in one.targets:
            for other, ranks in enumerate(members):
                if ranks & missing and other != n:
                    found.add((n, other, how))
    return found


def _short(ranks: Sequence[int]) -> str:
    """Ranks in few letters."""
    text = named(ranks)
    return text if len(text) <= 30 else f"{text[:24]}… ({len(ranks):,})"


def _doing(run: Run, waits: Sequence[Wait]) -> tuple[str, str]:
    """What ranks stand in, and where."""
    call = run.call(waits[0].row)
    number = f"{call.ordinal} on {call.group}" if call.ordinal else f"on {call.group}"
    more = f" and {len(waits) - 1} more" if len(waits) > 1 else ""
    return shown(f"{call.op} {number}{more}", 200), shown_place(call.place)


def _rows(run: Run, stands: Sequence[_Stand]) -> Iterator[tuple[str, str, str, str]]:
    for one in stands[:_MOST_ROWS]:
        doing, at = _doing(run, one.waits)
        stopped = run.call(one.waits[0].row).state is State.REFUSED
        whom = [
            _HOW["stopped" if stopped and how == "unmet" else how].format(
                named(missing), verb="makes" if len(missing) == 1 else "make"
            )
            for missing, how in one.targets
        ]
        yield named(one.ranks), doing, at, "; ".join(dict.fromkeys(whom)) or _NOBODY


_HOW = {
    "all": "{}",
    "any": "one of {}",
    "unmet": "{}, which {verb} another call there",
    "stopped": "nobody, stopped by distdoctor: {} {verb} another call there",
}
_NOBODY = "nobody, stopped by distdoctor: the call cannot be made"
