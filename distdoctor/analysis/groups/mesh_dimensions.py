"""Whether a rank takes one dimension of the mesh for another.

At one line every rank uses its own group of one dimension, and these groups divide the
ranks among them. A rank that uses another dimension's group there claims peers who
are elsewhere, and is missed by its own. The line of a helper that is given a group is
one for each way by which it is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distdoctor.analysis.causes import Cause, Divergence, pointers
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Group, Rows, Run

_EXPLAINED = {Cause.DIED, Cause.BUSY, Cause.UNUSED, Cause.DEVICE, Cause.SWALLOWED}

_LEAST_RANKS = 4  # fewer cannot form two groups of two in two ways

_ANY = -1  # way by which a line is called


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, or one of the ways to it where a rank uses several groups there."""

    site: int
    callers: int = _ANY


@dataclass(frozen=True, slots=True)
class _Confusion:
    """Ranks that use groups at a line which do not fit those of the others there."""

    line: _Line
    culprits: tuple[int, ...]
    groups: Mapping[int, int]  # by rank, the group it uses at the line
    by_halves: bool = False  # as many took the one dimension as the other


@dataclass(frozen=True, slots=True)
class OtherDimension:
    """Ranks that take one dimension of the mesh for another.

    Attributes:
        place: The line at which they use its group.
        ranks: Those.
        group: The group that the first of them uses.
        right: The group in which the others count it.
        by_halves: As many took the one dimension as the other.
        unnoticed: No call failed to meet.
    """

    place: Place | None
    ranks: tuple[int, ...]
    group: Group
    right: Group
    by_halves: bool
    unnoticed: bool


def mixed_dimensions(run: Run, found: list[Divergence]) -> list[Divergence]:
    """The divergences, with those that a confused mesh explains told as one.

    Where none was found the ranks may have met all the same, each pair from two
    lines: then tensors that do not belong together were combined without an error.

    Args:
        run: The run that is judged.
        found: The divergences as they are known so far.

    Returns:
        The divergences, the same list if no mesh explains them.
    """
    if run.world_size < _LEAST_RANKS or run.unseen:
        return found
    for divergence in found:
        if divergence.why in _EXPLAINED:
            continue
        involved = {*divergence.calls, *divergence.culprits, *divergence.victims}
        for line in _lines_of(run, divergence):
            confusion = _confusion(run, line) or _halves(run, line, divergence)
            if confusion is not None and set(confusion.culprits) & involved:
                return [_mesh_divergence(run, confusion, divergence)]
    return found or list(_unnoticed(run))


def _lines_of(run: Run, divergence: Divergence) -> list[_Line]:
    """Those of its calls."""
    places = {call.place for call in divergence.calls.values()}
    ways = {(call.place, call.callers) for call in divergence.calls.values()}
    return [
        line
        for line in _claims(run)
        if (place := run.sites[line.site]) in places
        and (line.callers == _ANY or (place, run.callers[line.callers]) in ways)
    ]


@memoize
def _claims(run: Run) -> dict[_Line, dict[int, int]]:
    """By line and rank, the subgroup it uses there; of lines with one for each rank.

    Lines where a rank uses several (a loop over groups) are left out; of those that it
    comes to in several ways (a helper that is given a group) the ways with one are not.
    """
    sizes = np.array([len(group.ranks) for group in run.groups] or [0])
    parts = np.flatnonzero((sizes > 1) & (sizes < run.world_size))
    if not len(parts):
        return {}
    is_part = np.isin(np.arange(len(sizes)), parts)
    there = is_part[run.column("group")] & (run.column("ordinal") > 0)
    here = np.flatnonzero(there)
    sites = run.values("site", here).astype(np.int64)
    claims, several = _one_each(run, here, sites)
    found = {_Line(site): groups for site, groups in claims.items() if site}
    callers = run.values("callers", here)
    again = here[np.isin(sites, several[several > 0]) & (callers > 0)]
    ways = run.values("site", again).astype(np.int64) * len(run.callers)
    ways += run.values("callers", again)
    known, keys = np.unique(ways, return_inverse=True)
    for key, groups in _one_each(run, again, keys)[0].items():
        found[_Line(*divmod(int(known[key]), len(run.callers)))] = groups
    return found


def _one_each(
    run: Run, rows: Rows, keys: npt.NDArray[np.int64]
) -> tuple[dict[int, dict[int, int]], npt.NDArray[np.int64]]:
    """By key and rank, the group of its calls; and the keys for which it has several.

    Args:
        run: Has the calls.
        rows: Which of them count.
        keys: Of each of these.
    """
    groups = run.values("group", rows)
    used = np.flatnonzero(np.bincount(keys, minlength=1))
    # One cell for each key and rank: whoever writes it last stays.
    cells = np.searchsorted(used, keys) * run.world_size + run.values("rank", rows)
    table = np.full(len(used) * run.world_size, -1, dtype=np.int32)
    table[cells] = groups
    several = np.unique(keys[table[cells] != groups])
    claims: dict[int, dict[int, int]] = {}
    for n in np.flatnonzero(~np.isin(used, several)):
        each = table.reshape(-1, run.world_size)[n]
        ranks = np.flatnonzero(each >= 0)
        claims[int(used[n])] = dict(
            zip(ranks.tolist(), each[ranks].tolist(), strict=True)
        )
    return claims, several


def _confusion(run: Run, line: _Line) -> _Confusion | None:
    """Ranks whose groups at a line overlap those of most others, if there are any."""
    claims = _claims(run)[line]
    used = Counter(claims.values())
    members = {group: set(run.groups[group].ranks) for group in used}
    claimed: dict[int, set[int]] = {}  # by rank, the groups used here that it is in
    for group, ranks in members.items():
        for rank in ranks:
            claimed.setdefault(rank, set()).add(group)
    if all(len(groups) == 1 for groups in claimed.values()):
        return None
    overlapping = {
        group: set().union(*(claimed[rank] for rank in ranks)) - {group}
        for group, ranks in members.items()
    }
    against = {
        rank: sum(used[other] for other in overlapping[group])
        for rank, group in claims.items()
    }
    most = max(against.values(), default=0)
    culprits = tuple(rank for rank, count in against.items() if count == most)
    if most < 2 or 2 * len(culprits) >= len(claims):
        return None
    rest = {group for rank, group in claims.items() if rank not in culprits}
    sound = not any(overlapping[group] & rest for group in rest)
    # Each of them is missed in a group of the others and claims one of them who is not
    # in it: groups that all their members use there are another level, not a mistake.
    missed = all(
        any(rank in members[group] for group in rest)
        and not members[claims[rank]] <= set(culprits)
        for rank in culprits
    )
    return _Confusion(line, culprits, claims) if sound and missed else None


def _halves(run: Run, line: _Line, divergence: Divergence) -> _Confusion | None:
    """Ranks of which each half takes another dimension, as by the parity of the rank.

    One half may make whole groups; the other claims peers from it that never come to
    its groups, or only at lines at which it uses them too.
    """
    claims = _claims(run)[line]
    members = {group: set(run.groups[group].ranks) for group in claims.values()}
    whole = {
        group
        for group, ranks in members.items()
        if all(claims.get(rank) == group for rank in ranks)
    }
    odd = tuple(rank for rank, group in claims.items() if group not in whole)
    if not odd or not whole or 2 * len(odd) != len(claims):
        return None
    claimed = [
        (one, rank, claims[one])
        for one in odd
        for rank in members[claims[one]] - {one}
        if claims.get(rank) != claims[one]
    ]
    if not all(claims.get(rank) in whole for _, rank, _ in claimed):
        return None
    never = not any(len(run.rows_on(rank, group)) for _, rank, group in claimed)
    if never or (
        any(
            rank in odd and call.place == run.sites[line.site]
            for rank, call in divergence.calls.items()
        )
        and _is_called_alike(run, line)
        and all(
            _uses(run, rank, group) <= _uses(run, one, group)
            for one, rank, group in claimed
        )
    ):
        return _Confusion(line, odd, claims, by_halves=True)
    return None


def _is_called_alike(run: Run, line: _Line) -> bool:
    """Whether all ranks come to a line in one way, and call the same there."""
    calls = run.calls[["callers", "op"]][_rows_at(run, line)]
    return len(np.unique(calls)) == 1


def _uses(run: Run, rank: int, group: int) -> set[tuple[int, int]]:
    """Lines at which a rank uses a group, each with how it is called."""
    used = run.calls[["site", "callers"]][run.rows_on(rank, group)]
    return {(site, callers) for site, callers in np.unique(used).tolist()}


def _rows_at(run: Run, line: _Line) -> Rows:
    here = run.column("site") == line.site
    if line.callers != _ANY:
        here &= run.column("callers") == line.callers
    return np.flatnonzero(here)


def _unnoticed(run: Run) -> Iterator[Divergence]:
    """A rank that uses two groups at two lines the other way round than its peers."""
    confusions = [_confusion(run, line) for line in _claims(run)]
    known = [confusion for confusion in confusions if confusion is not None]
    for n, first in enumerate(known):
        for second in known[n + 1 :]:
            if first.culprits == second.culprits and all(
                _used_by_others(second, rank, first.groups[rank])
                and _used_by_others(first, rank, second.groups[rank])
                for rank in first.culprits
            ):
                yield _mesh_divergence(run, first, None)
                return


def _used_by_others(confusion: _Confusion, rank: int, group: int) -> bool:
    return any(
        other != rank and theirs == group for other, theirs in confusion.groups.items()
    )


def _mesh_divergence(
    run: Run, confusion: _Confusion, divergence: Divergence | None
) -> Divergence:
    ranks, line = confusion.culprits, confusion.line
    place = run.sites[line.site]
    user = place if line.callers == _ANY else run.callers[line.callers][0]
    others = tuple(rank for rank in confusion.groups if rank not in ranks)
    first = ranks[0]
    mine = set(run.groups[confusion.groups[first]].ranks)
    theirs = next(
        group
        for rank, group in confusion.groups.items()
        if rank in others
        and (rank in mine if confusion.by_halves else first in run.groups[group].ranks)
    )
    calls: dict[int, Call] = {} if divergence is None else divergence.calls
    if first not in calls:
        calls = calls | {first: _first_call(run, first, line)}
    return Divergence(
        why=Cause.MESH,
        group=None if divergence is None else divergence.group,
        ordinal=0 if divergence is None else divergence.ordinal,
        calls=calls,
        culprits=ranks,
        victims=others,
        certainty=Certainty.LIKELY
        if divergence is None or confusion.by_halves
        else divergence.certainty,
        elsewhere=()
        if user is None or calls[first].place == user
        else pointers([user], ranks, "uses another dimension's group"),
        facts=OtherDimension(
            place,
            ranks,
            run.groups[confusion.groups[first]],
            run.groups[theirs],
            by_halves=confusion.by_halves,
            unnoticed=divergence is None,
        ),
    )


def _first_call(run: Run, rank: int, line: _Line) -> Call:
    rows = _rows_at(run, line)
    return run.call(int(rows[run.calls["rank"][rows] == rank][0]))
