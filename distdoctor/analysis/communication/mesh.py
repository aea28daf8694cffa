"""Whether a rank takes one dimension of the mesh for another.

At one line every rank uses its own group of one dimension, and these groups divide the
ranks among them. A rank that uses another dimension's group there claims peers who
are elsewhere, and is missed by its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.reasons import Divergence, Why, capital, pointers, s
from distdoctor.analysis.remembered import remembered
from distdoctor.model.events import Call
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Group, Run, named

_EXPLAINED = {Why.DIED, Why.BUSY, Why.UNUSED, Why.DEVICE, Why.SWALLOWED}

_LEAST_RANKS = 4  # fewer cannot form two groups of two in two ways


@dataclass(frozen=True, slots=True)
class _Confusion:
    """Ranks that use groups at a line which do not fit those of the others there."""

    site: int
    culprits: tuple[int, ...]
    groups: Mapping[int, int]  # by rank, the group it uses at the line
    by_halves: bool = False  # as many took the one dimension as the other


def mixed_dimensions(run: Run, found: list[Divergence]) -> list[Divergence]:
    """The divergences, with those that a confused mesh explains told as one.

    Where none was found the ranks may have met all the same, each pair from two
    lines: then tensors that do not belong together were combined without an error.
    """
    if run.world_size < _LEAST_RANKS or run.unseen:
        return found
    for divergence in found:
        if divergence.why in _EXPLAINED:
            continue
        places = {call.place for call in divergence.calls.values() if call.place}
        sites = [n for n, place in enumerate(run.sites) if place in places]
        involved = {*divergence.calls, *divergence.culprits, *divergence.victims}
        for confusion in filter(
            None, (_confusion(run, site) or _halves(run, site) for site in sites)
        ):
            if set(confusion.culprits) & involved:
                return [_told(run, confusion, divergence)]
    return found or list(_unnoticed(run))


@remembered
def _claims(run: Run) -> dict[int, dict[int, int]]:
    """By line and rank, the subgroup it uses there; of lines with one for each rank.

    Lines where a rank uses several (a loop over groups, a helper that is given one) are
    left out.
    """
    return _all_claims(run)


def _all_claims(run: Run) -> dict[int, dict[int, int]]:
    calls = run.calls
    sizes = np.array([len(group.ranks) for group in run.groups] or [0])
    parts = np.flatnonzero((sizes > 1) & (sizes < run.world_size))
    is_part = np.isin(np.arange(len(sizes)), parts)
    here = np.flatnonzero(is_part[calls["group"]] & (calls["ordinal"] > 0))
    sites, groups = calls["site"][here], calls["group"][here]
    used = np.flatnonzero(np.bincount(sites, minlength=1))
    # One cell for each line and rank: whoever writes it last stays.
    cells = np.searchsorted(used, sites) * run.world_size + calls["rank"][here]
    table = np.full(len(used) * run.world_size, -1, dtype=np.int32)
    table[cells] = groups
    several = set(np.unique(sites[table[cells] != groups]).tolist())
    claims: dict[int, dict[int, int]] = {}
    for site, line in zip(
        used.tolist(), table.reshape(-1, run.world_size), strict=True
    ):
        if site and site not in several:
            ranks = np.flatnonzero(line >= 0)
            claims[site] = dict(zip(ranks.tolist(), line[ranks].tolist(), strict=True))
    return claims


def _confusion(run: Run, site: int) -> _Confusion | None:
    """Ranks whose groups at a line overlap those of most others, if there are any."""
    claims = _claims(run).get(site, {})
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
    return _Confusion(site, culprits, claims) if sound and missed else None


def _halves(run: Run, site: int) -> _Confusion | None:
    """Ranks of which each half takes another dimension, as by the parity of the rank.

    One half may make whole groups; the other claims peers from it that never come to
    its groups, at whatever line.
    """
    claims = _claims(run).get(site, {})
    members = {group: set(run.groups[group].ranks) for group in claims.values()}
    whole = {
        group
        for group, ranks in members.items()
        if all(claims.get(rank) == group for rank in ranks)
    }
    odd = tuple(rank for rank, group in claims.items() if group not in whole)
    never = all(
        claims.get(rank) in whole and not len(run.rows_on(rank, claims[odd_one]))
        for odd_one in odd
        for rank in members[claims[odd_one]] - {odd_one}
    )
    if not odd or not whole or 2 * len(odd) != len(claims) or not never:
        return None
    return _Confusion(site, odd, claims, by_halves=True)


def _unnoticed(run: Run) -> Iterator[Divergence]:
    """A rank that uses two groups at two lines the other way round than its peers."""
    confusions = [_confusion(run, site) for site in _claims(run)]
    known = [confusion for confusion in confusions if confusion is not None]
    for n, first in enumerate(known):
        for second in known[n + 1 :]:
            if first.culprits == second.culprits and all(
                _used_by_others(second, rank, first.groups[rank])
                and _used_by_others(first, rank, second.groups[rank])
                for rank in first.culprits
            ):
                yield _told(run, first, None)
                return


def _used_by_others(confusion: _Confusion, rank: int, group: int) -> bool:
    return any(
        other != rank and theirs == group for other, theirs in confusion.groups.items()
    )


def _told(run: Run, confusion: _Confusion, divergence: Divergence | None) -> Divergence:
    ranks, place = confusion.culprits, run.sites[confusion.site]
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
        calls = calls | {first: _first_call(run, first, confusion.site)}
    return Divergence(
        why=Why.MESH,
        group=None if divergence is None else divergence.group,
        ordinal=0 if divergence is None else divergence.ordinal,
        calls=calls,
        culprits=ranks,
        victims=others,
        certainty=Certainty.LIKELY
        if divergence is None or confusion.by_halves
        else divergence.certainty,
        elsewhere=()
        if place is None or calls[first].place == place
        else pointers([place], ranks, "uses another dimension's group"),
        story=f"At {place} {capital(named(ranks)).lower()} use{s(ranks)} "
        f"{_group(run.groups[confusion.groups[first]])}, "
        + (
            "whose other members never do, and are there in "
            if confusion.by_halves
            else "where the others count it in "
        )
        + f"{_group(run.groups[theirs])}: it takes one dimension of the mesh for "
        "another"
        + (
            ", and tensors that do not belong together were combined."
            if divergence is None
            else "."
        ),
    )


def _group(group: Group) -> str:
    return f"{group.name} (ranks {', '.join(map(str, group.ranks))})"


def _first_call(run: Run, rank: int, site: int) -> Call:
    rows = run.rows_of(rank)
    at = int(np.flatnonzero(run.calls["site"][rows.start : rows.stop] == site)[0])
    return run.call(rows.start + at)
