"""Whether the gradients that ranks used are the mean of what they had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.gradients.used_gradients import (
    LEAST_LOOKS,
    Chapter,
    Look,
    chapters,
)
from distdoctor.analysis.learning_rate.rate_divisions import (
    divided_losses,
    divided_rates,
    losses_by_ranks,
)
from distdoctor.analysis.optimizer_step.step_cycles import passes_of
from distdoctor.model.events import Call, Place
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.observations.optimizer_step import Cycle
from distdoctor.model.operations import CODE_OF, REDUCE_OPS
from distdoctor.model.run import Run

TOLERANCE = 0.01
"""Of a ratio; gradients that are sent as bfloat16 keep 8 bits."""

_WORST = 2.0
"""Of the tolerance: one ratio of several, of gradients that are rounded twice."""

LEAST_RATIOS = 3
"""That must agree."""

CANCELLED = 0.05
"""Share of the largest rank's number below which the ranks' mean is mostly rounding."""


ROUNDED = 2.0**-9
"""Share of an element that is lost where gradients are sent as bfloat16. Elements that
cancel in a linear function leave the errors of all: they are of the norm's size."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Used gradients are the ranks' mean times a constant, at every look.

    Attributes:
        factor: The constant: the number of ranks, or one by it.
        looks: The steps at which that was seen.
        doubted: The learning rate may have been made for it, by its digits.
        at: Positions of the parameters that have it, of those that were looked at.
        right: Positions of those that are the mean.
    """

    chapter: Chapter
    factor: float
    looks: tuple[Look, ...]
    doubted: bool
    at: tuple[int, ...]
    right: tuple[int, ...] = ()


def wrong_ratios(run: Run) -> list[Ratio]:
    """Optimizers whose gradients are as many times too large, or too small.

    Args:
        run: The run that is judged.

    Returns:
        One for each optimizer and set of ranks.
    """
    found = [_ratio(run, chapter) for chapter in chapters(run)]
    return [ratio for ratio in found if ratio is not None]


def _ratio(run: Run, chapter: Chapter) -> Ratio | None:
    members = len(chapter.ranks)
    by_position: dict[int, list[float]] = {}
    looks = []
    for look in chapter.looks:
        if got := _ratios_at(look.seen):
            looks.append(look)
            for position, ratio in got.items():
                by_position.setdefault(position, []).append(ratio)
    count = sum(map(len, by_position.values()))
    if count < LEAST_RATIOS:
        return None
    if not all(map(_is_plain, looks)) and not _is_weighted(run, looks):
        return None
    if not _is_for_batches(run, chapter, looks):
        return None
    for factor in (float(members), 1 / members):
        at = _with_ratio(by_position, factor)
        right = _with_ratio(by_position, 1.0) if at else ()
        if not at or len(at) + len(right) < len(by_position):
            continue
        if right and not _may_be_partly(run, chapter, factor, by_position, at):
            continue
        if factor > 1.0 and divided_rates(run):
            return None
        doubted = not right and _makes_up(chapter, members)
        return Ratio(chapter, factor, tuple(looks), doubted, at, right)
    return None


def _may_be_partly(
    run: Run,
    chapter: Chapter,
    factor: float,
    by_position: dict[int, list[float]],
    at: tuple[int, ...],
) -> bool:
    """Whether a part of the gradients may have been summed and not divided.

    A hook, or a factor for one layer, may be the number of ranks by chance; so the job
    must sum by hand, and each ratio be known of several steps, a wrong one of more.
    """
    averaged = any(one.averaged for one in chapter.holds)
    seldom = any(
        len(ratios) < (LEAST_RATIOS if position in at else LEAST_LOOKS)
        for position, ratios in by_position.items()
    )
    summed = factor > 1.0 and not averaged and not seldom
    return summed and bool(summing_lines(run, chapter.ranks))


def _with_ratio(by_position: dict[int, list[float]], factor: float) -> tuple[int, ...]:
    """Positions of the parameters that had this ratio at every look."""
    return tuple(
        position
        for position, ratios in by_position.items()
        if np.allclose(np.median(ratios), factor, rtol=TOLERANCE, atol=0.0)
        and np.allclose(ratios, factor, rtol=_WORST * TOLERANCE, atol=0.0)
    )


def _is_for_batches(run: Run, chapter: Chapter, looks: Sequence[Look]) -> bool:
    """Whether what losses were divided by is the number of batches of a step.

    Where that is the number of ranks, too, it may have been meant for these. Then each
    pass must have had a batch of its own, and nothing in the source divide a loss by
    the number of ranks.
    """
    members = len(chapter.ranks)
    if members < 2 or not any(
        one.passes == members and one.factor != 1.0
        for look in looks
        for one in look.seen
    ):
        return True
    cycles = [
        cycle
        for cycle in run.of(Cycle, chapter.ranks[0])
        if cycle.optimizer == chapter.holds[0].optimizer
    ]
    apart = all(cycle.batches >= sum(1 for _ in passes_of(cycle)) for cycle in cycles)
    return bool(cycles) and apart and not divided_losses(run)


def _makes_up(chapter: Chapter, members: int) -> bool:
    """Whether the learning rate looks like one that was divided by the ranks.

    It does if it has more digits than without that: 0.0125 on four ranks is 0.05.
    """
    rate = max((one.rate for look in chapter.looks for one in look.seen), default=0.0)
    return _digits(rate * members) < _digits(rate)


def _digits(number: float) -> int:
    """Significant digits of a number, as people write it."""
    return len(f"{number:.9e}".partition("e")[0].replace(".", "").rstrip("0"))


def ratios_of(seen: Sequence[Gradients]) -> list[float]:
    """What ranks used in a step, by the mean of what they had, where that is clear.

    Args:
        seen: One step, as each rank saw it.

    Returns:
        The ratios of a few parameters; 1.0 is the mean.
    """
    return [*_ratios_at(seen).values()]


def _ratios_at(seen: Sequence[Gradients]) -> dict[int, float]:
    """The same, by the position of the parameter."""
    if len({one.probed for one in seen}) > 1 or any(one.local for one in seen):
        return {}
    own = np.array([one.own for one in seen])
    used = np.array([one.used for one in seen])
    if not own.size or own.shape != used.shape:
        return {}
    mean, most = own.mean(axis=0), np.abs(own).max(axis=0)
    alike = np.isclose(used, used[0], rtol=1e-6, atol=0.0).all(axis=0)
    clear = alike & (np.abs(mean) > CANCELLED * most) & (most > 0.0)
    clear &= ROUNDED * _norms_at(seen[0]) <= TOLERANCE * np.abs(used[0])
    ratios = used[0][clear] / mean[clear]
    positions = np.array(seen[0].probed)[clear]
    return dict(zip(positions.tolist(), ratios.tolist(), strict=True))


def _norms_at(seen: Gradients) -> NDArray[np.float64]:
    """Norms of the gradients that were probed: [probed] float64; 0.0: not known."""
    norms = [
        seen.norms[position] if position < len(seen.norms) else 0.0
        for position in seen.probed
    ]
    known = np.array(norms)
    return np.where(np.isfinite(known) & (known > 0.0), known, 0.0)


def _is_plain(look: Look) -> bool:
    """Whether the loss was a mean, divided by nothing but the passes of the step."""
    return all(
        abs(one.factor * (1 if one.factor == 1.0 else one.passes) - 1.0) < TOLERANCE
        for one in look.seen
    )


def _is_weighted(run: Run, looks: Sequence[Look]) -> bool:
    """Whether the loss was a mean times a constant that ranks have no part in.

    The weight of one part of a loss, or a temperature, is such a constant; the number
    of ranks would be one that makes up for what is done to gradients.
    """
    factors = [one.factor for look in looks for one in look.seen]
    if not run.sources or not factors or min(factors) <= 0.0:
        return False
    if max(factors) - min(factors) > TOLERANCE * min(factors):
        return False
    members = len(looks[0].seen)
    by_ranks = np.isclose(factors[0], [members, 1 / members], rtol=TOLERANCE).any()
    once = all(one.passes == 1 for look in looks for one in look.seen)
    return once and not by_ranks and not losses_by_ranks(run)


def summing_lines(
    run: Run, ranks: tuple[int, ...], step: Gradients | None = None
) -> list[Call]:
    """Of each line that sums tensors over ranks, a call; that which sums most first.

    Args:
        run: The run.
        ranks: Of whom the first is asked.
        step: Its step whose gradients are meant; None: any.

    Returns:
        Those between that step and the one before, of any optimizer, if there are such.
    """
    rows = run.with_op(CODE_OF["all_reduce"])
    rows = rows[run.calls["reduce_op"][rows] == REDUCE_OPS.index("sum")]
    rows = rows[run.calls["rank"][rows] == ranks[0]]
    if step is not None and step.rank == ranks[0]:
        begin, end = _calls_before(run, step)
        first = run.rows_of(step.rank).start
        here = rows[(rows >= first + begin) & (rows < first + end)]
        rows = here if len(here) else rows
    sums: dict[Place, tuple[int, int]] = {}
    for site, spec, row in zip(
        run.calls["site"][rows].tolist(),
        run.calls["spec"][rows].tolist(),
        rows.tolist(),
        strict=True,
    ):
        place = run.sites[site]
        if place is None:
            continue
        elements = sum(tensor.numel for tensor in run.specs[spec].tensors)
        sums[place] = sums.get(place, (0, row))[0] + elements, row
    order = sorted(sums.values(), reverse=True)
    return [run.call(row) for _, row in order]


def _calls_before(run: Run, step: Gradients) -> tuple[int, int]:
    """How many calls its rank had made at the step before a step, and at that."""
    begin = 0
    for count, event in run.told(Gradients, rank=step.rank):
        if event is step:
            return begin, count
        begin = count
    return 0, 0
