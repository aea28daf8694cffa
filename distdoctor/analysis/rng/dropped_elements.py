"""Which ranks that share the work of a replica drop the same elements, or others.

What such ranks hold is either a copy, of which all must drop the same elements, or a
part of its own, of which each draws anew.

Source: Megatron-LM, megatron/core/tensor_parallel/random.py, which keeps a stream of
random numbers for each of the two; PyTorch, torch/distributed/tensor/_random.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.causes import capital
from distdoctor.analysis.data.fed_batches import fed_alike
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.data_parallel import at_work, data_parallel
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.findings import Finding
from distdoctor.model.observations.rng import Dropped
from distdoctor.model.run import Run, named

_BY_CHANCE = 1e-9
"""How likely masks that are drawn apart may be taken for the same ones. Source: chosen;
a job is asked for a few hundred pairs of them."""

_MOST_RANKS = 16  # of a team that are compared; more would tell the same


@dataclass(frozen=True, slots=True)
class Masks:
    """Calls of dropout by ranks that share the work of a replica.

    Attributes:
        ranks: Those ranks, ascending.
        dropped: What each of them dropped in the first call that shows it.
        calls: How many calls show it.
    """

    ranks: tuple[int, ...]
    dropped: tuple[Dropped, ...]
    calls: int


def copies_apart(run: Run) -> list[Masks]:
    """Calls in which ranks were given the same, and did not drop the same.

    Args:
        run: The run that is judged.

    Returns:
        One for each set of ranks and line.
    """
    found: dict[object, list[tuple[Dropped, ...]]] = {}
    for team in _teams(run):
        if fed_alike(run, team) is False:
            continue  # copies there are tables of the model
        for several in _met(run, team):
            by_given: dict[int, list[Dropped]] = {}
            for one in several:
                by_given.setdefault(one.given, []).append(one)
            for alike in by_given.values():
                if len({one.left for one in alike}) > 1:
                    ranks = tuple(one.rank for one in alike)
                    found.setdefault((ranks, alike[0].place), []).append(tuple(alike))
    return list(_masks(found.values()))


def parts_alike(run: Run) -> list[Masks]:
    """Calls in which ranks were given other parts each, and dropped the same elements.

    Args:
        run: The run that is judged.

    Returns:
        One for each set of ranks and line, at which all calls are so.
    """
    found: dict[object, list[tuple[Dropped, ...]]] = {}
    for team in _teams(run):
        by_place: dict[object, list[list[Dropped]]] = {}
        for several in _met(run, team):
            if len({one.given for one in several}) == len(several):
                by_place.setdefault(several[0].place, []).append(several)
        for place, calls in by_place.items():
            for ranks in _sharing(calls):
                found[ranks, place] = [
                    tuple(one for one in several if one.rank in ranks)
                    for several in calls
                ]
    return list(_masks(found.values()))


def masks_finding(masks: Masks, what: str) -> Finding:
    """What is told of such calls.

    Args:
        masks: The calls.
        what: What the ranks do, behind their names.
    """
    times = f" in {masks.calls} calls" if masks.calls > 1 else ""
    return Finding(
        message=f"{capital(named(masks.ranks))} {what}{times}",
        exhibits=masks.dropped,
        locations=tuple(places(masks.dropped, masks.ranks, "drops elements")),
        details={"calls": masks.calls, "elements": masks.dropped[0].elements},
    )


def _masks(found: Iterable[Sequence[tuple[Dropped, ...]]]) -> Iterator[Masks]:
    for calls in found:
        first = calls[0]
        yield Masks(tuple(one.rank for one in first), first, len(calls))


def _sharing(calls: Sequence[Sequence[Dropped]]) -> list[tuple[int, ...]]:
    """Sets of ranks whose masks are the same in all of these calls."""
    teams: list[list[int]] = []
    by_rank = {
        rank: [one for several in calls for one in several if one.rank == rank]
        for rank in (one.rank for one in calls[0])
    }
    for rank, own in by_rank.items():
        for team in teams:
            if _chance(by_rank[team[0]], own) < _BY_CHANCE:
                team.append(rank)
                break
        else:
            teams.append([rank])
    return [tuple(team) for team in teams if len(team) > 1]


def _chance(here: Sequence[Dropped], there: Sequence[Dropped]) -> float:
    """How likely masks that are drawn apart are as alike as these; 1.0: they differ."""
    bits = dropped = 0
    for one, other in zip(here, there, strict=True):
        common = one.known & other.known
        if (one.kept ^ other.kept) & common:
            return 1.0
        bits += common.bit_count()
        dropped += (common & ~one.kept).bit_count()
    share = dropped / bits if bits else 0.0
    chance: float = (share**2 + (1 - share) ** 2) ** bits
    return chance


@memoize
def _teams(run: Run) -> list[tuple[int, ...]]:
    """Ranks that exchange something by collectives within a forward pass.

    Without those that average their gradients or read data of their own: to them, each
    dropout is their own.
    """
    ranks = [rank for rank in run.seen if run.of(Dropped, rank)]
    groups = at_work(run, ranks, together=True)
    if not groups:
        return []
    sets: dict[int, set[int]] = {}
    for number, several in enumerate((*replicas(run), *data_parallel(run))):
        for rank in several:
            sets.setdefault(rank, set()).add(number)
    found = []
    for group in sorted(groups):
        team: list[int] = []
        taken: set[int] = set()
        for rank in group:
            own = sets.get(rank, set())
            if not own & taken and len(team) < _MOST_RANKS:
                team.append(rank)
                taken |= own
        if len(team) > 1:
            found.append(tuple(team))
    return found


def _met(run: Run, team: Sequence[int]) -> Iterator[list[Dropped]]:
    """The same call of each rank; none of steps in which they did not call alike."""
    by_step: dict[int, dict[int, list[Dropped]]] = {}
    for rank in team:
        for one in run.of(Dropped, rank):
            by_step.setdefault(one.step, {}).setdefault(rank, []).append(one)
    for by_rank in by_step.values():
        shapes = {
            tuple((one.call, one.elements, one.place) for one in several)
            for several in by_rank.values()
        }
        if len(by_rank) == len(team) and len(shapes) == 1:
            yield from map(list, zip(*by_rank.values(), strict=True))
