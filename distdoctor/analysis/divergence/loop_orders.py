"""Ranks that go through the same names in another order, with a call for each of them.

The calls come from one line and are of one size, so nothing fails: what one rank has
under one name is put together with what another has under another. Whether it matters
depends on whether what is put together belongs to the name; the source tells that (see
`analysis.source.loop_entries`). Ranks may well work through tasks in orders of their
own, and average their gradients after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distdoctor.analysis.causes import Cause, Divergence, where
from distdoctor.analysis.collectives.alignment import Alignment
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.loop_entries import belongs_to
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.observations.divergence import Turn
from distdoctor.model.observations.gradients import Sent
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Group, Run


class _Visit(NamedTuple):
    """A call that a rank made for a name."""

    row: int
    ordinal: int
    names: tuple[str, ...]


_Round = list[_Visit]
"""Visits of names, each once."""


@dataclass(frozen=True, slots=True)
class LoopOrders:
    """A loop over the same names that ranks go through in different orders.

    Attributes:
        ranks: All of them.
        loop: Its line.
        orders: Ranks, and the names of each round of theirs.
        where: The first call for different names, in the group's sequence.
    """

    ranks: tuple[int, ...]
    loop: Place
    orders: tuple[tuple[tuple[int, ...], tuple[tuple[str, ...], ...]], ...]
    where: str


def other_orders(run: Run, alignment: Alignment) -> Iterator[Divergence]:
    """The first loop over names that ranks went through in different orders.

    Args:
        run: The run.
        alignment: Of one group, whose calls all met calls that look alike.

    Yields:
        At most one divergence.
    """
    for (site, loop), visits in _by_line(run, alignment).items():
        seen = {rank for rank in alignment.group.ranks if rank not in run.unseen}
        if visits.keys() != seen:
            continue
        rounds = [list(_rounds(run, one)) for one in visits.values()]
        for same in zip(*rounds, strict=False):
            by_rank = dict(zip(visits, same, strict=True))
            if not _are_in_other_orders(by_rank):
                continue
            if _is_shown_by_the_source(run, site, loop, same[0][0]):
                yield _divergence(run, alignment.group, loop, by_rank)
                return
            break


@memoize
def _turns(run: Run) -> dict[int, Turn]:
    """By row, the turn that was told of a call."""
    found = {}
    for rank in run.seen:
        rows = run.rows_of(rank)
        for at, event in run.told(Turn, rank=rank):
            if 0 < at <= len(rows):
                row = rows[at - 1]
                # With threads, another call may have come in between.
                if run.calls["ordinal"][row] == event.ordinal:
                    found[row] = event
    return found


def _by_line(
    run: Run, alignment: Alignment
) -> dict[tuple[int, Place], dict[int, list[_Visit]]]:
    """By line of the call and of the loop, and by rank, the visits of names."""
    found: dict[tuple[int, Place], dict[int, list[_Visit]]] = {}
    turns = _turns(run)
    if not turns:
        return found
    calls = run.calls
    for row in alignment.rows.tolist():
        turn = turns.get(row)
        if turn is None or turn.place is None:
            continue
        if not OPERATIONS[calls["op"][row]].payload:
            continue
        key = int(calls["site"][row]), turn.place
        visit = _Visit(row, int(calls["ordinal"][row]), turn.names)
        found.setdefault(key, {}).setdefault(int(calls["rank"][row]), []).append(visit)
    return found


def _rounds(run: Run, visits: Sequence[_Visit]) -> Iterator[_Round]:
    """Visits up to where a name comes again.

    Collectives of objects send sizes first: two calls, for one name.
    """
    current: _Round = []
    for visit in visits:
        last = current[-1] if current else None
        if (
            last is not None
            and visit.names == last.names
            and visit.ordinal == last.ordinal + 1
            and run.calls["spec"][visit.row] != run.calls["spec"][last.row]
        ):
            continue
        if any(visit.names == one.names for one in current):
            yield current
            current = []
        current.append(visit)
    if current:
        yield current


def _are_in_other_orders(by_rank: Mapping[int, _Round]) -> bool:
    """Whether the same calls of all ranks are for the same names, paired otherwise."""
    ordinals = {tuple(visit.ordinal for visit in one) for one in by_rank.values()}
    names = {frozenset(visit.names for visit in one) for one in by_rank.values()}
    orders = {tuple(visit.names for visit in one) for one in by_rank.values()}
    return len(ordinals) == 1 and len(names) == 1 and len(orders) > 1


def _is_shown_by_the_source(run: Run, site: int, loop: Place, visit: _Visit) -> bool:
    place = run.sites[site]
    if place is None or place.file not in run.sources:
        return False
    names = _turns(run)[visit.row].variables
    program, op = program_of(run), run.call(visit.row).op
    # Gradients may be made of a task's batch, and are the model's: what is kept of them
    # under the task's name, such as their norm, is no matter of order.
    gradients = any(
        sent.place == place for rank in run.seen for sent in run.of(Sent, rank)
    )
    return belongs_to(program, place, loop.line, names, op, entries_only=gradients)


def _divergence(
    run: Run, group: Group, loop: Place, by_rank: Mapping[int, _Round]
) -> Divergence:
    orders: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for rank, visits in by_rank.items():
        orders.setdefault(tuple(visit.names for visit in visits), []).append(rank)
    (usual, most), *_ = Counter(
        {order: len(ranks) for order, ranks in orders.items()}
    ).most_common()
    odd = tuple(
        sorted(r for order, ranks in orders.items() for r in ranks if order != usual)
    )
    culprits = odd if most > len(odd) else ()
    at = next(
        n
        for n in range(len(usual))
        if len({visits[n].names for visits in by_rank.values()}) > 1
    )
    ordinal = next(iter(by_rank.values()))[at].ordinal
    role = Role.CULPRIT if culprits else Role.PARTY
    return Divergence(
        why=Cause.ORDER,
        group=group,
        ordinal=ordinal,
        calls={rank: run.call(visits[at].row) for rank, visits in by_rank.items()},
        culprits=culprits,
        victims=tuple(sorted(by_rank.keys() - {*culprits})),
        certainty=Certainty.LIKELY,
        elsewhere=(
            Location(
                loop,
                culprits or tuple(sorted(by_rank)),
                role,
                "goes through names in another order than other ranks",
            ),
        ),
        facts=LoopOrders(
            tuple(by_rank),
            loop,
            tuple((tuple(ranks), order) for order, ranks in orders.items()),
            where(group, ordinal),
        ),
    )
