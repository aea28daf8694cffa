"""Losses that are divided by the number of ranks, whose gradients are averaged as well.

What is told was seen twice. The graph of each loss says that its mean was divided by
the number of ranks, and the source that just this number was meant; or that its sum was
divided by a count, and the ranks' counts add up to that, though they differ. Gradients
went from backward to the step without anything that would have summed them instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2
from typing import TypeVar

import numpy as np

from distdoctor.analysis.accumulation.global_counts import is_by_all
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.gradients.gradient_ratios import (
    LEAST_RATIOS,
    TOLERANCE,
    ratios_of,
)
from distdoctor.analysis.gradients.used_gradients import ACTIVATIONS, LEAST_LOOKS
from distdoctor.analysis.learning_rate.rate_divisions import scaled_rates
from distdoctor.analysis.source.loss_divisions import Divisions
from distdoctor.model.events import Place, Wrapped
from distdoctor.model.layers import LAYER_MASK, LAYER_SHIFT, LAYERS
from distdoctor.model.observations.gradients import (
    Backward,
    Gradients,
    Holds,
    Sent,
    Within,
)
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    CLEAR,
    CLIP,
    DROP,
    LOCAL,
    SCALED,
    SCALED_STEP,
    SCHEDULE,
    SKIP,
    SPARE,
    STEP,
    UNSCALE,
    UPDATE,
    Cycle,
    unpacked,
)
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_PLAIN = frozenset(
    {BACKWARD, SCALED, SPARE, CLEAR, DROP, STEP, SCALED_STEP, SKIP}
    | {UNSCALE, UPDATE, SCHEDULE, CLIP}
    | {word + LOCAL for word in (BACKWARD, SCALED, SPARE)}
)
"""What may become of gradients that a wrapper averages, and nobody else changes."""

_SUMMING = ("register_comm_hook", "divide_factor", "predivide")
"""Of names by which wrappers are told to do another thing than to average."""

_LEAST_SCALE = 3.0
"""Base 2 logarithm of what a GradScaler multiplies a loss with, at the least."""

_OF_WRAPPERS = [LAYERS.index(name) for name in ("backward", "fsdp")]

_SCATTERING = [n for n, one in enumerate(OPERATIONS) if "reduce_scatter" in one.name]


_Told = TypeVar("_Told", Cycle, Holds, Sent)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """An optimizer whose gradients are the ranks' mean, divided by their number.

    Attributes:
        ranks: All.
        holds: What it holds, as each tells.
        looks: Of the steps that were looked at, what each rank tells.
        divided: The lines that divide losses.
        backward: The lines of backward.
        doubted: Gradients were clipped, or the rate was made for the number of ranks.
        measured: What ranks used was seen to be the mean of what they had.
        by_all: Losses are sums, divided by a count that was summed over the ranks.
    """

    ranks: tuple[int, ...]
    holds: tuple[Holds, ...]
    looks: tuple[tuple[Gradients, ...], ...]
    divided: tuple[Place, ...]
    backward: tuple[Place, ...]
    doubted: bool
    measured: bool
    by_all: bool = False


def shrunk(run: Run) -> list[Shrunk]:
    """Optimizers that step with means which were divided by the ranks before.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer; empty if not all ranks were seen.
    """
    ranks = tuple(range(run.world_size))
    if len(ranks) < 2 or run.simulated or set(ranks) - set(run.seen):
        return []
    if not _averages(run, ranks) or _meets_in_forward(run, ranks):
        return []
    found = [one for one in _optimizers(run, ranks) if _is_divided(run, one)]
    lines = _divisions(run) if found else None
    cases = []
    for looks in found:
        if is_by_all(looks):
            cases.append(_shrunk(run, looks, *_by_counts(run), by_all=True))
        elif lines is not None:
            cases.append(_shrunk(run, looks, *lines))
    return cases


def _averages(run: Run, ranks: Sequence[int]) -> bool:
    """Whether wrappers average over all ranks, as they do if nobody tells them else."""
    wrapped = [one for rank in ranks for one in run.of(Wrapped, rank)]
    if {one.rank for one in wrapped} != set(ranks):
        return False
    if any(one.ranks and len(one.ranks) != len(ranks) for one in wrapped):
        return False
    return all(one.how == "ddp" for one in wrapped) or _scatters(run)


def _scatters(run: Run) -> bool:
    """Whether sharded gradients are averaged among all ranks, and not among some."""
    layers = run.column("flags") >> LAYER_SHIFT & LAYER_MASK
    rows = np.isin(run.column("op"), _SCATTERING) & np.isin(layers, _OF_WRAPPERS)
    groups = {int(group) for group in np.unique(run.column("group")[rows])}
    sizes = {len(run.groups[group].ranks) for group in groups}
    return sizes == {run.world_size}


def _meets_in_forward(run: Run, ranks: Sequence[int]) -> bool:
    """Whether ranks exchange what a loss is made of, so that it may be that of all."""
    if any(run.of(Within, rank) for rank in ranks):
        return True
    sharded = any(one.sharded for rank in ranks for one in run.of(Holds, rank))
    return bool(sharded) and any(_sends_much(run, rank) for rank in ranks)


def _sends_much(run: Run, rank: int) -> bool:
    """Whether a line of the user's sends more than a metric about once in a step."""
    rows = run.rows_of(rank)
    calls = run.calls[rows.start : rows.stop]
    own = calls[(calls["flags"] >> LAYER_SHIFT & LAYER_MASK) == 0]
    steps = max((one.step for one in run.of(Gradients, rank)), default=0)
    much = [
        sum(tensor.numel for tensor in run.specs[spec].tensors) > ACTIVATIONS
        for spec in own["spec"].tolist()
    ]
    return bool(sum(much) * 2 > steps)


def _optimizers(
    run: Run, ranks: Sequence[int]
) -> Iterator[tuple[tuple[Gradients, ...], ...]]:
    """The looks at each optimizer, with what each rank tells of one."""
    of_ranks = [
        {(one.optimizer, one.step): one for one in run.of(Gradients, rank)}
        for rank in ranks
    ]
    common = set(of_ranks[0]).intersection(*of_ranks[1:])
    # What was counted up to the first step may belong to others.
    common = {(number, step) for number, step in common if step > 1}
    for number in sorted({one for one, _ in common}):
        yield tuple(
            tuple(one[key] for one in of_ranks)
            for key in sorted(common)
            if key[0] == number
        )


def _is_divided(run: Run, looks: Sequence[Sequence[Gradients]]) -> bool:
    """Whether each loss was divided by the ranks, and nothing made up for it."""
    members = len(looks[0])
    cycles = _of(run, Cycle, looks)
    words = {word for cycle in cycles for word in unpacked(cycle.words)}
    if len(looks) < LEAST_LOOKS or not cycles or words - _PLAIN:
        return False
    seen = [one for look in looks for one in look]
    if any(one.local or one.mixed or not one.passes for one in seen):
        return False
    shares = [one.factor * one.passes * members for one in seen]
    scaled = SCALED_STEP in words
    by_ranks = all(_is_scale(share, scaled=scaled) for share in shares)
    if not by_ranks and (scaled or not is_by_all(looks)):
        return False
    if any(one.positions for one in _of(run, Sent, looks)):
        return False
    if _is_sharded(run, looks):
        return not _may_sum(run)
    # What FSDP gathers for forward counts as well, and is left out.
    if any(one.unclear > ACTIVATIONS for one in seen):
        return False
    ratios = _ratios(looks, members)
    if len(ratios) < LEAST_RATIOS:
        return False
    if CLIP in words:
        return max(ratios) <= 1.0 + TOLERANCE and not _may_sum(run)
    return bool(np.allclose(ratios, 1.0, rtol=TOLERANCE, atol=0.0))


def _may_sum(run: Run) -> bool:
    """Whether wrappers may be told to sum, where that does not show in gradients."""
    return any(word in text for text in run.sources.values() for word in _SUMMING)


def _is_scale(share: float, *, scaled: bool) -> bool:
    """Whether a mean was divided by passes and ranks alone, but for a GradScaler."""
    if abs(share - 1.0) < TOLERANCE:
        return True
    if not scaled or share <= 0.0:
        return False
    power = log2(share)
    return power >= _LEAST_SCALE and abs(power - round(power)) < TOLERANCE


def _ratios(looks: Sequence[Sequence[Gradients]], members: int) -> list[float]:
    """What was used, by the mean of what ranks had, without a GradScaler's scale."""
    return [
        ratio * (look[0].factor * look[0].passes * members or 1.0)
        for look in looks
        for ratio in ratios_of(look)
    ]


def _of(
    run: Run, kind: type[_Told], looks: Sequence[Sequence[Gradients]]
) -> list[_Told]:
    """What all ranks tell of an optimizer."""
    number = looks[0][0].optimizer
    return [
        event
        for one in looks[0]
        for event in run.of(kind, one.rank)
        if event.optimizer == number
    ]


def _is_sharded(run: Run, looks: Sequence[Sequence[Gradients]]) -> bool:
    held = _of(run, Holds, looks)
    return bool(held) and all(one.sharded for one in held)


def _divisions(run: Run) -> tuple[list[Place], list[Place]] | None:
    """Lines that divide losses by the ranks, and those of backward, if all are so."""
    divisions = Divisions(program_of(run), run.world_size)
    backward = _backward(run)
    found = [divisions.by_ranks(place) for place in backward]
    divided = [place for place in found if place is not None]
    if not divided or len(divided) < len(found):
        return None
    return list(dict.fromkeys(divided)), backward


def _by_counts(run: Run) -> tuple[list[Place], list[Place]]:
    """Lines that divide losses by a count, as far as the source tells; and backward."""
    divisions = Divisions(program_of(run), run.world_size)
    backward = _backward(run)
    found = [divisions.by_data(place) for place in backward]
    return list(dict.fromkeys(one for one in found if one is not None)), backward


def _backward(run: Run) -> list[Place]:
    places = [one.place for rank in run.seen for one in run.of(Backward, rank)]
    return list(dict.fromkeys(place for place in places if place is not None))


def _shrunk(
    run: Run,
    looks: tuple[tuple[Gradients, ...], ...],
    divided: Sequence[Place],
    backward: Sequence[Place],
    *,
    by_all: bool = False,
) -> Shrunk:
    words = {w for cycle in _of(run, Cycle, looks) for w in unpacked(cycle.words)}
    return Shrunk(
        ranks=tuple(one.rank for one in looks[0]),
        holds=tuple(_of(run, Holds, looks)),
        looks=looks,
        divided=tuple(divided),
        backward=tuple(backward),
        doubted=CLIP in words or scaled_rates(run),
        measured=not _is_sharded(run, looks),
        by_all=by_all,
    )
