"""Ranks that share a model, and clip gradients each by the norm of its own part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.data.fed_batches import fed_alike
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.gradients.used_gradients import LEAST_LOOKS
from distdoctor.analysis.replicas.data_parallel import at_work
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.gradient_scaling import computed_norms
from distdoctor.model.events import Event, Place
from distdoctor.model.observations.gradients import NormClip, ScaledShards
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_ALIKE = 1e-3
"""Norms that differ by less, relatively, may be of the same gradients."""

_CLEARLY = 0.01
"""Factors and norms that differ by so much, relatively, are not one, rounded."""


@dataclass(frozen=True, slots=True)
class PartialNorms:
    """Clips of ranks that divide by other norms each.

    Attributes:
        ranks: Who clips.
        norms: Of each of them, the first time.
        bound: That they clip to; None: it moves, and is not alike on the ranks.
        seen: What was told of that time, by rank.
        places: Lines that clip, as far as known.
        times: How often that was seen.
        of: How many times all ranks clipped.
        sharded: FSDP has a part of each parameter on each rank.
        factors: Of each of them, the first time, where no function of torch clipped:
            what its shards were multiplied by.
    """

    ranks: tuple[int, ...]
    norms: tuple[float, ...]
    bound: float | None
    seen: tuple[Event, ...]
    places: tuple[Place, ...]
    times: int
    of: int
    sharded: bool
    factors: tuple[float, ...] = ()


def partial_norms(run: Run) -> Iterator[PartialNorms]:
    """Sets of ranks with one model among them that clip by partial norms.

    Args:
        run: The run that is judged.

    Yields:
        One for each set, where a norm is beyond the bound.
    """
    clips = {rank: run.of(NormClip, rank) for rank in run.seen}
    clipping = [rank for rank, told in clips.items() if told]
    cut = [rank for rank in clipping if any(one.sharded for one in clips[rank])]
    by_function = [*_of(run, cut, sharded=True)] if cut else []
    yield from by_function or _by_hand(run)
    whole = [set(ranks) for ranks in replicas(run)]
    for ranks in sorted(at_work(run, clipping, together=True)):
        # Who averages its gradients has the whole of them; and to whom other samples
        # are given may have a model of its own.
        if not any(len(one & set(ranks)) > 1 for one in whole) and fed_alike(
            run, ranks
        ):
            yield from _of(run, ranks, sharded=False)


def _of(run: Run, ranks: Sequence[int], *, sharded: bool) -> Iterator[PartialNorms]:
    by_rank = [
        [one for one in run.of(NormClip, rank) if one.sharded is sharded]
        for rank in ranks
    ]
    together = [
        several
        for several in zip(*by_rank, strict=False)
        if len({(one.clip, one.bound, one.place) for one in several}) == 1
    ]
    apart = [several for several in together if _part(several, sharded)]
    if len(ranks) > 1 and apart:
        first = apart[0]
        yield PartialNorms(
            ranks=tuple(one.rank for one in first),
            norms=tuple(one.norm for one in first),
            bound=first[0].bound,
            seen=first,
            places=_places(first),
            times=len(apart),
            of=len(together),
            sharded=sharded,
        )


# --- by hand ---


def _by_hand(run: Run) -> Iterator[PartialNorms]:
    """Optimizers whose shards each rank multiplied by a factor of its own.

    It is a clip by the norm of what is there where norm times factor is the same on all
    ranks that multiplied, whenever they did, and the norms are not; or where factors
    that only ever shorten are others from step to step, and so is the bound, among
    ranks that one gradient was scattered over: others may train a model of their own.
    """
    groups = _scattering(run)
    by_step: dict[tuple[int, int], list[ScaledShards]] = {}
    for rank in run.seen:
        for one in run.of(ScaledShards, rank):
            by_step.setdefault((one.optimizer, one.step), []).append(one)
    by_optimizer: dict[int, list[list[ScaledShards]]] = {}
    for (optimizer, _), several in by_step.items():
        if len(several) == run.world_size > 1:
            by_optimizer.setdefault(optimizer, []).append(several)
    for looks in by_optimizer.values():
        apart = [several for several in looks if _is_apart(several)]
        if not apart:
            continue
        bound = _bound(looks) if len(apart) >= LEAST_LOOKS else None
        if bound is None:
            apart = [several for several in apart if _is_apart_among(groups, several)]
            if not apart or not _shortens(looks):
                continue
        first = tuple(apart[0])
        known = computed_norms(program_of(run)) if run.sources else []
        yield PartialNorms(
            ranks=tuple(one.rank for one in first),
            norms=tuple(one.norm for one in first),
            bound=bound,
            seen=first,
            places=tuple(known) if len(known) == 1 else _places(first),
            times=len(apart),
            of=len(looks),
            sharded=True,
            factors=tuple(one.factor for one in first),
        )


def _bound(looks: Sequence[Sequence[ScaledShards]]) -> float | None:
    """To which all clipped, whenever a norm was beyond it; None: there is none."""
    every = [one for several in looks for one in several]
    bounds = [one.norm * one.factor for one in every if one.factor < 1 - _ALIKE]
    bound = max(bounds)
    if bound > min(bounds) * (1 + _ALIKE):
        return None
    if any(
        one.norm > bound * (1 + _ALIKE) for one in every if one.factor >= 1 - _ALIKE
    ):
        return None  # it would have been clipped as well
    return bound


def _scattering(run: Run) -> list[frozenset[int]]:
    """Groups over which something is reduced and scattered, as gradients are."""
    if not run.has(ScaledShards):
        return []
    numbers = {
        int(run.calls["group"][row])
        for code, one in enumerate(OPERATIONS)
        if one.name.startswith("reduce_scatter")
        for row in run.with_op(code)
    }
    return [frozenset(run.groups[number].ranks) for number in sorted(numbers)]


def _is_apart_among(
    groups: Sequence[frozenset[int]], several: Sequence[ScaledShards]
) -> bool:
    return any(
        _is_apart([one for one in several if one.rank in group])
        for group in groups
        if len(group) > 1
    )


def _shortens(looks: Sequence[Sequence[ScaledShards]]) -> bool:
    """Whether gradients were never made longer, and shorter by no constant factor."""
    of_ranks: dict[int, list[float]] = {}
    for several in looks:
        for one in several:
            of_ranks.setdefault(one.rank, []).append(one.factor)
    return all(max(factors) < 1 + _ALIKE for factors in of_ranks.values()) and any(
        max(factors) > min(factors) * (1 + _CLEARLY) for factors in of_ranks.values()
    )


def _is_apart(several: Sequence[ScaledShards]) -> bool:
    """Whether factors and norms differ, so that one factor times each is one bound."""
    factors = [one.factor for one in several]
    norms = [one.norm for one in several]
    return (
        min(factors) < 1 - _ALIKE
        and max(factors) > min(factors) * (1 + _CLEARLY)
        and max(norms) > min(norms) * (1 + _CLEARLY)
    )


def _places(events: Sequence[Event]) -> tuple[Place, ...]:
    found = dict.fromkeys(getattr(one, "place", None) for one in events)
    return tuple(place for place in found if place is not None)


def _part(several: Sequence[NormClip], sharded: bool) -> bool:
    """Whether these norms are of other parts, and one process would have clipped."""
    norms: list[float] = []
    for one in several:
        # Replicas of a part, in hybrid sharding, have the same norm.
        if not any(math.isclose(one.norm, other, rel_tol=_ALIKE) for other in norms):
            norms.append(one.norm)
    longest = math.hypot(*norms) if sharded else max(norms)
    return len(norms) > 1 and longest > several[0].bound
