"""Ranks that send their gradients for averaging in different orders.

The calls come from one line and parameters of one size, so nothing fails: what one rank
has for one parameter is averaged with what another has for another. Which parameter's
gradient a call carried is told where it was recognised for certain (see
`Sent.calls`), by memory or by value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, where
from distdoctor.analysis.collectives.alignment import Alignment
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.gradients.used_gradients import Chapter, Look, whole_chapters
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.observations.gradients import Sent
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Group, Run

_Carried = dict[int, dict[int, tuple[int, ...]]]
"""By ordinal and rank, positions of the parameters whose gradients a call carried."""


@dataclass(frozen=True, slots=True)
class GradientOrders:
    """A call to which ranks brought gradients of different parameters.

    Attributes:
        where: The call, in the group's sequence.
        step: Of the optimizer.
        brought: Ranks, and names of parameters.
        alone: Ranks sent gradients of parameters for which others sent none.
    """

    where: str
    step: int
    brought: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]
    alone: bool = False


def gradients_crossed(run: Run, alignment: Alignment) -> Iterator[Divergence]:
    """The first call to which ranks brought gradients of different parameters.

    Args:
        run: The run.
        alignment: Of one group, whose calls all met calls that look alike.

    Yields:
        At most one divergence.
    """
    group = alignment.group
    if not run.has(Sent) or not run.has_seen(group.ranks):
        return
    for chapter, columns in zip(whole_chapters(run), _columns(run), strict=True):
        if not columns.keys() >= {*group.ranks}:
            continue
        for look in chapter.looks:
            carried = _carried(run, group, columns, look)
            for ordinal in sorted(carried):
                if not _is_apart(carried[ordinal].values()):
                    continue
                at = int(np.searchsorted(alignment.ordinals, ordinal))
                calls = calls_at(run, alignment.meeting(run, at))
                brought = carried[ordinal]
                # Ranks that share layers in pairs may have them at other places.
                alone = {*group.ranks} == {*chapter.ranks} and _are_alone(
                    brought, columns, look
                )
                whole = alone and _are_whole(brought, calls, chapter, look)
                if whole or _are_crossed(carried, ordinal, chapter, look):
                    yield _divergence(
                        group, ordinal, calls, brought, chapter, look, alone
                    )
                    return


@memoize
def _columns(run: Run) -> list[dict[int, int]]:
    """Of each chapter, by rank, where a look has what that rank told."""
    return [
        {rank: n for n, rank in enumerate(chapter.ranks)}
        for chapter in whole_chapters(run)
    ]


def _carried(
    run: Run, group: Group, columns: Mapping[int, int], look: Look
) -> _Carried:
    """What the calls on a group carried for a step; nothing where all did the same."""
    told = {
        rank: sent
        for rank in group.ranks
        if (sent := look.sent[columns[rank]]) is not None and sent.calls
    }
    if len({(sent.positions, sent.calls) for sent in told.values()}) < 2:
        return {}
    found: _Carried = {}
    for rank, sent in told.items():
        for ordinal, positions in _of_rank(run, group, rank, sent).items():
            found.setdefault(ordinal, {})[rank] = positions
    return found


def _of_rank(
    run: Run, group: Group, rank: int, sent: Sent
) -> dict[int, tuple[int, ...]]:
    rows = run.rows_of(rank)
    found: dict[int, tuple[int, ...]] = {}
    for position, number in zip(sent.positions, sent.calls, strict=False):
        if not 0 < number <= len(rows):
            continue
        row = rows[number - 1]
        is_here = run.groups[run.calls["group"][row]] is group
        if is_here and "reduce" in OPERATIONS[run.calls["op"][row]].name:
            ordinal = int(run.calls["ordinal"][row])
            found[ordinal] = (*found.get(ordinal, ()), position)
    return found


def _are_crossed(carried: _Carried, ordinal: int, chapter: Chapter, look: Look) -> bool:
    """Whether a call to which ranks brought nothing in common went wrong.

    Ranks have other gradients than each other, that were to be averaged, and what one
    brought is no other part of a bucket: another brought the same elsewhere.
    """
    brought = carried[ordinal]
    for rank, positions in brought.items():
        elsewhere = {
            one
            for other, each in carried.items()
            if other != ordinal
            for at, ones in each.items()
            if at != rank
            for one in ones
        }
        if elsewhere & {*positions} and _are_unlike(brought, positions, chapter, look):
            return True
    return False


def _are_unlike(
    ranks: Iterable[int], positions: tuple[int, ...], chapter: Chapter, look: Look
) -> bool:
    """Whether ranks used other gradients than each other for these parameters."""
    rows = [chapter.ranks.index(one) for one in ranks]
    used = look.prints()[np.ix_(rows, positions)]
    return bool((used != used[0]).any())


def _are_whole(
    brought: Mapping[int, tuple[int, ...]],
    calls: Mapping[int, Call],
    chapter: Chapter,
    look: Look,
) -> bool:
    """Whether these parameters are all that the calls have room for, and went wrong."""
    sizes = chapter.holds[0].sizes
    return any(
        _are_unlike(brought, positions, chapter, look) for positions in brought.values()
    ) and all(
        rank in calls
        and sum(sizes[one] for one in positions)
        == sum(tensor.numel for tensor in calls[rank].tensors)
        for rank, positions in brought.items()
    )


def _are_alone(ranks: Iterable[int], columns: Mapping[int, int], look: Look) -> bool:
    """Whether ranks sent what others did not, for they leave out what was not used."""
    told = [look.sent[columns[rank]] for rank in ranks]
    return len({frozenset(one.positions) for one in told if one is not None}) > 1


def _is_apart(brought: Iterable[tuple[int, ...]]) -> bool:
    ones = list(dict.fromkeys(brought))
    return any(not {*one} & {*ones[0]} for one in ones[1:])


def _divergence(
    group: Group,
    ordinal: int,
    calls: Mapping[int, Call],
    brought: Mapping[int, tuple[int, ...]],
    chapter: Chapter,
    look: Look,
    alone: bool,
) -> Divergence:
    camps: dict[tuple[int, ...], list[int]] = {}
    for rank, positions in sorted(brought.items()):
        camps.setdefault(positions, []).append(rank)
    most = max(camps.values(), key=len)
    odd = tuple(sorted({*brought} - {*most}))
    culprits = odd if len(most) > len(odd) and not alone else ()
    return Divergence(
        why=Cause.ORDER,
        group=group,
        ordinal=ordinal,
        calls=dict(calls),
        culprits=culprits,
        victims=tuple(sorted(calls.keys() - {*culprits})),
        certainty=Certainty.LIKELY,
        elsewhere=_callers(calls, culprits or tuple(sorted(calls))),
        facts=GradientOrders(
            where(group, ordinal),
            look.step,
            tuple(
                (tuple(ranks), tuple(chapter.names[n] for n in positions))
                for positions, ranks in camps.items()
            ),
            alone,
        ),
    )


def _callers(calls: Mapping[int, Call], ranks: Sequence[int]) -> tuple[Location, ...]:
    """Where the user's code comes to the line that sends, for one parameter each."""
    found: dict[Place, list[int]] = {}
    for rank in ranks:
        for place in calls[rank].callers[:1]:
            found.setdefault(place, []).append(rank)
    return tuple(
        Location(place, tuple(some), Role.CULPRIT, "goes through the parameters")
        for place, some in found.items()
    )
