"""Asynchronous calls whose tensors were used before anybody waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import SOURCE, Cause, Divergence
from distdoctor.analysis.collectives.early_result_reads import EarlyRead, reads
from distdoctor.analysis.deadlock.wait_for_graph import gone
from distdoctor.analysis.evidence import ended_well
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call, Event, Place, Touched
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.operations import CODE_OF, OPERATIONS, UNUSED, Waits
from distdoctor.model.run import Run

_OFTEN = 2
"""Steps whose last call of a line was not waited for, though others were."""


@dataclass(frozen=True, slots=True)
class TouchedEarly:
    """A tensor that was changed, or an optimizer's step, before a call was waited for.

    Attributes:
        ranks: On which it was seen.
        first: The first time.
        times: How often.
    """

    ranks: tuple[int, ...]
    first: Touched
    times: int


@dataclass(frozen=True, slots=True)
class PartedBehind:
    """Ranks that parted from the others right behind a call nobody waits for.

    Attributes:
        issuing: Who makes the call.
        call: The call.
        culprits: Who parted.
        parted: How they parted, as the calls alone show.
    """

    issuing: tuple[int, ...]
    call: Call
    culprits: tuple[int, ...]
    parted: Divergence


def early(run: Run) -> Iterator[Divergence]:
    """What was used too early; where nothing was, what nobody ever waited for.

    Args:
        run: The run that is judged.

    Yields:
        A divergence for each line of calls.
    """
    touched = list(_touched(run))
    yield from touched
    read = [one for one in reads(run) if one.issued not in _issued(run)]
    for one in read:
        yield _read(run, one)
    if not touched and not read:
        yield from _never_waited_for(run)


def decided_early(run: Run, divergence: Divergence) -> Divergence:
    """Ranks that left the others, told as ranks that did not wait for what they asked.

    The last that they did before is an asynchronous reduction, and nobody ever waits
    for those of that line: each rank may have found its own value in place of the
    common one.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is not so.
    """
    if divergence.why not in _GONE or not divergence.culprits:
        return divergence
    last = {rank: _last_before(run, divergence, rank) for rank in divergence.culprits}
    calls = {rank: call for rank, call in last.items() if call is not None}
    places = {call.place for call in calls.values()}
    if len(calls) < len(last) or len(places) != 1 or None in places:
        return divergence
    if not all(_never_used(run, call) for call in calls.values()):
        return divergence
    call = next(iter(calls.values()))
    here = run.calls["site"] == run.sites.index(call.place)
    issuing = np.unique(run.calls["rank"][here]).tolist()
    found = _divergence(
        run,
        issuing,
        call,
        [(call.place, "issued here, and nobody waits")],
        PartedBehind(tuple(issuing), call, divergence.culprits, divergence),
    )
    return replace(
        found,
        group=divergence.group,
        ordinal=divergence.ordinal,
        calls=divergence.calls,
        elsewhere=(*found.elsewhere, *divergence.elsewhere),
        certainty=Certainty.LIKELY,
    )


_GONE = {Cause.UNEVEN, Cause.SKIPPED, Cause.FINISHED}


def _last_before(run: Run, divergence: Divergence, rank: int) -> Call | None:
    """What a rank called last before it did something else than the others."""
    rows = run.rows_of(rank)
    behind = rows.stop
    if (stands := divergence.calls.get(rank)) is not None:
        mine = run.calls[rows.start : rows.stop]
        groups = [n for n, group in enumerate(run.groups) if group.name == stands.group]
        here = np.isin(mine["group"], groups) & (mine["ordinal"] == stands.ordinal)
        if not here.any():
            return None
        behind = rows.start + int(np.flatnonzero(here)[-1])
    return run.call(behind - 1) if behind > rows.start else None


def _never_used(run: Run, call: Call) -> bool:
    """Whether it is a reduction whose handle was let go, as all of that line were."""
    if not call.unused or OPERATIONS[CODE_OF[call.op]].waits is Waits.RECEIVER:
        return False
    rows = run.rows_of(call.rank)
    mine = run.calls[rows.start : rows.stop]
    here = mine["site"] == run.sites.index(call.place)
    return bool((mine["flags"][here] & UNUSED > 0).all())


def raced(run: Run, ranks: Iterable[int]) -> bool:
    """Whether one of these ranks used a tensor that a call was still at work on.

    It may have had the tensor as it was before the call, half of the result or all of
    it, and another one at the next step: ranks that part then part by that. So it is
    with a tensor whose call was never waited for.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        Whether one did.
    """
    return not _racing(run).isdisjoint(ranks)


@memoize
def _racing(run: Run) -> set[int]:
    touching = {rank for rank in run.seen if run.of(Touched, rank)}
    large = [
        one
        for one in _unawaited(run)
        if sum(each.numel for each in one.call.tensors) > 1
    ]
    return touching.union(*(set(one.ranks) for one in large))


def _touched(run: Run) -> Iterator[Divergence]:
    by_line: dict[tuple[Place | None, bool], list[Touched]] = {}
    for rank in run.seen:
        for event in run.of(Touched, rank):
            by_line.setdefault((event.issued, event.stepped), []).append(event)
    for (issued, stepped), events in by_line.items():
        ranks = sorted({event.rank for event in events})
        first = events[0]
        remark = "the step" if stepped else "waited for here, after the change"
        yield _divergence(
            run,
            ranks,
            first,
            [(issued, "issued here"), (first.place, remark)],
            TouchedEarly(tuple(ranks), first, len(events)),
        )


def _issued(run: Run) -> set[Place | None]:
    """Lines of calls whose tensors were touched."""
    return {event.issued for rank in run.seen for event in run.of(Touched, rank)}


def _read(run: Run, one: EarlyRead) -> Divergence:
    ranks, issued, waited = one.ranks, one.issued, one.waited
    found = _divergence(
        run,
        ranks,
        one.cause,
        [
            (one.read, "read here, before the wait"),
            (issued, "issued here"),
            (waited, "waited for here"),
        ],
        one,
    )
    return replace(
        found,
        certainty=Certainty.LIKELY,
        details={**found.details, SOURCE: str(one.read)},
    )


@dataclass(frozen=True, slots=True)
class Unawaited:
    """Calls of one line that nobody waited for, on these ranks."""

    ranks: list[int]
    call: Call
    count: int  # on the first of them
    of: int  # calls that it made from there
    led_by: Sequence[Place] = ()  # lines that lead to just those, if there are such


def _never_waited_for(run: Run) -> Iterator[Divergence]:
    for one in _unawaited(run):
        ranks, call = one.ranks, one.call
        yield _divergence(
            run,
            ranks,
            call,
            [
                *((line, "leads to those nobody waits for") for line in one.led_by),
                (call.place, "issued here, and nobody waits"),
            ],
            one,
        )


@memoize
def _unawaited(run: Run) -> list[Unawaited]:
    """Lines whose handles are not used, on ranks that ended as they should.

    A line that is waited for elsewhere, and only at the end of the job no more, left
    nothing undone that matters; one that leaves out the last in each step did. A send
    needs no wait to arrive.
    """
    sends = [n for n, op in enumerate(OPERATIONS) if op.waits is Waits.RECEIVER]
    unused = (run.column("flags") & UNUSED) > 0
    if not unused.any():
        return []
    unused &= (run.column("site") > 0) & ~np.isin(run.column("op"), sends)
    over = [rank for rank in gone(run) if ended_well(run, rank)]
    unused &= np.isin(run.column("rank"), over)
    found = []
    for site in np.unique(run.column("site")[unused]):
        here = run.column("site") == site
        lacking = {}
        for rank in np.unique(run.column("rank")[here & unused]).tolist():
            rows = np.flatnonzero(here & (run.column("rank") == rank))
            if _leaves_out(run, rank, rows, unused):
                lacking[rank] = rows
        if lacking:
            ranks = sorted(lacking)
            rows = lacking[ranks[0]]
            left = rows[unused[rows]]
            call = run.call(int(left[0]))
            led = _led_by(run, left, rows[~unused[rows]])
            found.append(Unawaited(ranks, call, len(left), len(rows), led))
    return found


def _led_by(run: Run, left: NDArray[np.intp], waited: NDArray[np.intp]) -> list[Place]:
    """The callers of a line's calls that nobody waits for, if all others had others."""
    theirs, mine = (
        [run.callers[n] for n in np.unique(run.calls["callers"][rows]).tolist()]
        for rows in (waited, left)
    )
    known = {place for way in theirs for place in way}
    own = [next((line for line in way if line not in known), None) for way in mine]
    lines = dict.fromkeys(line for line in own if line is not None)
    return [*lines] if len(waited) and None not in own else []


def _leaves_out(
    run: Run, rank: int, rows: NDArray[np.intp], unused: NDArray[np.bool_]
) -> bool:
    """Whether a rank waits for none of these calls, or not for the last of a step.

    Who waits for the last alone may rest on the order in which a backend works.
    """
    if unused[rows].all():
        return True
    steps = [n for n, _ in run.told(Gradients, rank=rank)]
    ends = np.searchsorted(rows, run.rows_of(rank).start + np.array(steps, np.int64))
    last = rows[np.unique(ends[ends > 0]) - 1]
    return int(unused[last].sum()) >= _OFTEN and bool(unused[last].all())


def _divergence(
    run: Run,
    ranks: Sequence[int],
    cause: Event,
    lines: Sequence[tuple[Place | None, str]],
    facts: object,
) -> Divergence:
    everybody = len(ranks) == len(run.seen)
    role = Role.PARTY if everybody else Role.CULPRIT
    return Divergence(
        why=Cause.EARLY,
        group=None,
        ordinal=0,
        calls={},
        culprits=() if everybody else tuple(ranks),
        victims=tuple(ranks) if everybody else (),
        cause=cause,
        elsewhere=tuple(
            Location(place, tuple(ranks), role, remark)
            for place, remark in lines
            if place is not None
        ),
        facts=facts,
    )
