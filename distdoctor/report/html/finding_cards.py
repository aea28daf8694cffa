"""Findings as cards: what, who, the line with its neighbours, last calls, the cure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distdoctor.analysis.deadlock.next_calls import next_calls
from distdoctor.model.events import BLOCKED, State
from distdoctor.model.run import Run, named
from distdoctor.report.html.parting_chains import PartingChain, parting_chain
from distdoctor.report.html.shown_text import shown
from distdoctor.report.schema import FindingData, LocationData

_AROUND = 3  # lines of source before and after
_EXCERPTS = 8
_OPEN = 2  # excerpts that are unfolded
_ROWS = 12
_CALLS = 4
_TOLD = ["ordinal", "op", "state", "site"]
_FILES = 16

SEVERITY_WORDS = {"error": "Error", "warning": "Warning", "note": "Note"}


@dataclass(frozen=True, slots=True)
class ExcerptRow:
    """One line of source."""

    number: int
    text: str
    is_marked: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line of the user's source with its neighbours."""

    at: str
    function: str
    ranks: str
    role: str
    remark: str
    lines: tuple[ExcerptRow, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call at the end of what some ranks did."""

    text: str
    state: str  # over | waits | raised | next


@dataclass(frozen=True, slots=True)
class LastCalls:
    """The last calls of ranks that made the same."""

    ranks: str
    mark: str  # culprit | victim
    is_cut: bool  # they made more calls before
    calls: tuple[LastCall, ...]
    at: str


@dataclass(frozen=True, slots=True)
class CardTestimony:
    """What a kind of evidence tells, and the files that do."""

    evidence: str
    what: str
    files: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class FindingCard:
    """One finding."""

    code: str
    name: str
    severity: str
    word: str
    certainty: str
    summary: str
    culprits: str
    victims: str
    evidence: str
    excerpts: tuple[Excerpt, ...]
    left_out: int  # locations that are not shown
    picture: tuple[str, ...]
    calls: tuple[LastCalls, ...]
    since: tuple[str, ...]
    told_by: tuple[CardTestimony, ...]
    chain: PartingChain | None
    remedy: str
    following: tuple[tuple[str, str], ...]


def finding_card(finding: FindingData, run: Run | None) -> FindingCard:
    """The card of a finding.

    Args:
        finding: Of a report.
        run: What was examined; None: it is not kept.
    """
    places = {(one.file, one.line): one for one in reversed(finding.locations)}
    located = sorted(places.values(), key=finding.locations.index)
    return FindingCard(
        code=finding.code,
        name=finding.name.replace("-", " "),
        severity=finding.severity,
        word=SEVERITY_WORDS.get(finding.severity, finding.severity),
        certainty=finding.certainty,
        summary=shown(finding.summary, 6_000),
        culprits=named(finding.ranks) if finding.ranks else "",
        victims=named(finding.victims) if finding.victims else "",
        evidence=", ".join(finding.evidence),
        excerpts=tuple(
            excerpt(one, run, is_open=n < _OPEN)
            for n, one in enumerate(located[:_EXCERPTS])
        ),
        left_out=max(0, len(located) - _EXCERPTS),
        picture=tuple(
            shown(str(line), 400) for line in finding.details.get("picture") or ()
        ),
        calls=() if run is None else tuple(_last_calls(finding, run)),
        since=tuple(_since(finding)),
        told_by=tuple(
            CardTestimony(
                one.evidence,
                shown(one.what),
                tuple(shown(path, 300) for path in one.files[:_FILES]),
                one.count - len(one.files[:_FILES]),
            )
            for one in finding.told_by
        ),
        chain=None if run is None else parting_chain(finding, run),
        remedy=shown(finding.remedy, 6_000),
        following=tuple(_following(finding)),
    )


def excerpt(
    location: LocationData, run: Run | None, *, is_open: bool = True
) -> Excerpt:
    """A line of the user's source with its neighbours.

    Args:
        location: The line.
        run: Has the sources; None: it is not kept.
        is_open: It is shown unfolded.
    """
    sources = {} if run is None else run.sources
    source = sources.get(location.file, "").splitlines()
    lines = []
    if 0 < location.line <= len(source):
        first = max(1, location.line - _AROUND)
        last = min(len(source), location.line + _AROUND)
        for number in range(first, last + 1):
            text = shown(source[number - 1].expandtabs(4).rstrip(), 240)
            lines.append(ExcerptRow(number, text, number == location.line))
    return Excerpt(
        at=shown(f"{location.file}:{location.line}"),
        function=shown(location.function, 120),
        ranks=named(location.ranks) if location.ranks else "",
        role=location.role,
        remark=shown(location.remark, 400),
        lines=tuple(lines),
        is_open=is_open,
    )


def _following(finding: FindingData) -> Iterator[tuple[str, str]]:
    """All that follows from a finding: code with name, and sentence."""
    for one in finding.consequences:
        yield f"{one.code} {one.name.replace('-', ' ')}", shown(one.summary)
        yield from _following(one)


def _since(finding: FindingData) -> Iterator[str]:
    """Where and since when ranks wait."""
    waiting: list[dict[str, Any]] = finding.details.get("waiting") or []
    for one in waiting[:_ROWS]:
        at = f" at {one['at']}" if one["at"] else ""
        yield shown(
            f"{named(one['ranks'])} in {one['call']} on {one['group']}{at}, from "
            f"{one['since_s']:.1f} s after the first call of the run"
        )
    if len(waiting) > _ROWS:
        yield f"and {len(waiting) - _ROWS} more"


def _last_calls(finding: FindingData, run: Run) -> Iterator[LastCalls]:
    """What each rank did around the fault; ranks that did the same share a row."""
    # The calls that are known are those of the last start of the ranks.
    if "start" in finding.details or not len(run.calls):
        return
    group = finding.details.get("group")
    index = next((n for n, g in enumerate(run.groups) if g.name == group), None)
    if index is None and finding.details.get("picture"):
        return  # it is not about calls
    folded: dict[tuple[bytes, bool, str], list[int]] = {}
    rows_of: dict[tuple[bytes, bool, str], list[int]] = {}
    columns = run.calls[_TOLD]
    for mark, ranks in (("culprit", finding.ranks), ("victim", finding.victims)):
        for rank in ranks:
            if not 0 <= rank < run.world_size:
                continue
            mine = run.rows_of(rank)
            rows = list(mine[-_CALLS:])
            if index is not None and mine:
                rows = run.rows_on(rank, index)[-_CALLS:].tolist()
            alike = columns[rows].tobytes() if rows else b""
            key = alike, len(mine) > len(rows), mark
            folded.setdefault(key, []).append(rank)
            rows_of.setdefault(key, rows)
    ordered = sorted(folded.items(), key=lambda item: min(item[1]))
    for key, ranks in ordered[:_ROWS]:
        rows = rows_of[key]
        calls = [_call(run, row) for row in rows]
        after = next_calls(run, ranks[0], 2) if rows else []
        calls += [LastCall(run.call(row).op, "next") for row in after]
        place = run.call(rows[-1]).place if rows else None
        at = shown(str(place)) if place else ""
        yield LastCalls(named(ranks), key[2], key[1], tuple(calls), at)


def _call(run: Run, row: int) -> LastCall:
    call = run.call(row)
    state = "over"
    if call.state in BLOCKED:
        state = "waits"
    elif call.state is State.RAISED:
        state = "raised"
    return LastCall(f"{call.ordinal or ''} {call.op}".strip(), state)


def cards(findings: Sequence[FindingData], run: Run | None) -> list[FindingCard]:
    """The cards of several findings, in their order.

    Args:
        findings: Of a report.
        run: What was examined; None: it is not kept.
    """
    return [finding_card(one, run) for one in findings]
