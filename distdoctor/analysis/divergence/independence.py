"""Which of the divergences found are faults, each once, and which came first.

What a rank does after a call that failed to meet is a consequence; a rank that is gone
is missed on every group; one line that is wrong is wrong on all groups it is used with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.model.events import BLOCKED, Place, State
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

_GONE = {Cause.DIED, Cause.FINISHED}


def independent(run: Run, found: Iterable[Divergence]) -> list[Divergence]:
    """Each fault once, none that follows from another, the earliest first.

    Args:
        run: The run that is judged.
        found: The divergences, in any order.

    Returns:
        Those that are faults.
    """
    faults = _one_per_missing_rank(list(found))
    if len(faults) < 2:
        return faults
    places = [_positions(run, fault) for fault in faults]
    kept = [
        n
        for n, fault in enumerate(faults)
        if not any(
            _follows(fault, places[n], other, places[m])
            for m, other in enumerate(faults)
            if m != n and not places[n].keys().isdisjoint(places[m])
        )
    ]
    in_order = _by_happens_before([places[n] for n in kept])
    return alike([faults[kept[n]] for n in in_order])


def alike(found: Iterable[Divergence]) -> list[Divergence]:
    """One for all divergences that differ in their ranks and groups alone.

    Args:
        found: The divergences.

    Returns:
        One for each set of lines, with the ranks and groups of all.
    """
    return [_together(same) for same in _grouped(found, _lines)]


def _lines(fault: Divergence) -> Hashable:
    culprits = set(fault.culprits)
    calls: set[tuple[Place | None, str, bool]] = {
        (call.place, str(call), rank in culprits) for rank, call in fault.calls.items()
    }
    elsewhere = frozenset((at.place, at.remark) for at in fault.elsewhere)
    if not elsewhere and not all(place for place, _, _ in calls):
        return id(fault)  # nothing tells that the line is the same
    kind = (fault.why, fault.certainty, bool(culprits))
    return kind, frozenset(calls), elsewhere


def _one_per_missing_rank(found: list[Divergence]) -> list[Divergence]:
    """A rank that is gone is missed on every group: that is one fault."""
    left = {
        rank for fault in found if fault.why in _GONE for rank in fault.culprits
    }  # whoever waits for them is no fault of its own
    faults = [
        fault
        for fault in found
        if not (fault.why is Cause.SKIPPED and set(fault.victims) <= left)
    ]
    owner: dict[tuple[Cause, int], int] = {}  # rank -> the fault it is missed in
    absent: dict[int, Divergence] = {}
    for n, fault in enumerate(faults):
        absent[n] = fault
        if not fault.culprits or not fault.calls.keys().isdisjoint(fault.culprits):
            continue
        ranks = set(fault.culprits)
        for m in {owner[fault.why, r] for r in ranks if (fault.why, r) in owner}:
            first = absent.pop(m)
            keep = fault if len(fault.culprits) > len(first.culprits) else first
            culprits = {*first.culprits, *fault.culprits}
            victims = {*first.victims, *fault.victims} - culprits
            fault = absent[n] = replace(
                keep, culprits=_sorted(culprits), victims=_sorted(victims)
            )
        owner.update({(fault.why, rank): n for rank in fault.culprits})
    return list(absent.values())


def _positions(run: Run, fault: Divergence) -> dict[int, int]:
    """Where each rank of a fault stands: a row of its calls, or the end of them."""
    numbers = {group.name: n for n, group in enumerate(run.groups)}
    places = {rank: run.rows_of(rank).stop for rank in fault.culprits}
    for rank, call in fault.calls.items():
        rows = run.rows_on(rank, numbers[call.group])
        here = rows[run.calls["ordinal"][rows] == call.ordinal]
        places[rank] = int(here[-1]) if len(here) else run.rows_of(rank).stop
    return places


def _follows(
    fault: Divergence,
    at: dict[int, int],
    other: Divergence,
    before: dict[int, int],
) -> bool:
    """Whether a fault is one because its ranks had gone astray in another before.

    An exception of its own that ended a rank is no consequence.
    """
    if other.certainty is not Certainty.PROVED or fault.why is Cause.DIED:
        return False
    strays = set(other.culprits)
    led_astray = (
        rank in before
        and before[rank] < at[rank]
        and (
            rank in strays
            or (
                rank in other.calls
                and other.calls[rank].state in {*BLOCKED, State.RAISED}
            )
        )
        for rank in (fault.culprits or fault.calls)
    )
    return all(led_astray) if fault.culprits else any(led_astray)


def _by_happens_before(places: list[dict[int, int]]) -> list[int]:
    """Numbers of faults so that on every rank the earlier comes first."""
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for n, at in enumerate(places):
        for rank, position in at.items():
            by_rank.setdefault(rank, []).append((position, n))
    later: dict[int, set[int]] = {n: set() for n in range(len(places))}
    for stops in by_rank.values():
        stops.sort()
        for (a, first), (b, second) in pairwise(stops):
            if a < b:
                later[first].add(second)
    waits_for = dict.fromkeys(later, 0)
    for numbers in later.values():
        for n in numbers:
            waits_for[n] += 1
    ready = [n for n, count in waits_for.items() if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        n = heappop(ready)
        order.append(n)
        for following in later[n]:
            waits_for[following] -= 1
            if not waits_for[following]:
                heappush(ready, following)
    # Faults that come before each other, on different ranks, have no order.
    return order + [n for n in later if waits_for[n]]


def _grouped(
    found: Iterable[Divergence], key_of: Callable[[Divergence], Hashable]
) -> list[list[Divergence]]:
    groups: dict[Hashable, list[Divergence]] = {}
    for fault in found:
        groups.setdefault(key_of(fault), []).append(fault)
    return list(groups.values())


def _together(same: list[Divergence]) -> Divergence:
    first, *others = same
    if not others:
        return first
    culprits = {rank for fault in same for rank in fault.culprits}
    victims = {rank for fault in same for rank in fault.victims} - culprits
    calls = {rank: call for fault in same for rank, call in fault.calls.items()}
    more = {rank for fault in others for rank in fault.culprits or fault.calls}
    return replace(
        first,
        culprits=_sorted(culprits),
        victims=_sorted(victims if culprits or first.group else victims - calls.keys()),
        calls=calls | first.calls,
        elsewhere=tuple(
            replace(place, ranks=_sorted(culprits)) if culprits else place
            for place in first.elsewhere
        ),
        remarks=f"{first.remarks} The same {len(others)} more "
        f"time{'s' if len(others) > 1 else ''}, with {named(more)}.",
    )


def _sorted(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
