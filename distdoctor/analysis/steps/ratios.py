"""Whether the gradients that ranks used are the mean of what they had."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.steps.gradients import Chapter, Look, chapters
from distdoctor.model.events import Call, Place
from distdoctor.model.operations import CODE_OF, REDUCE_OPS
from distdoctor.model.run import Run

TOLERANCE = 0.01
"""Of a ratio; gradients that are sent as bfloat16 keep 8 bits."""

LEAST_RATIOS = 3
"""That must agree."""

CANCELLED = 0.05
"""Share of the largest rank's number below which the ranks' mean is mostly rounding."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Used gradients are the ranks' mean times a constant, at every look.

    Attributes:
        factor: The constant: the number of ranks, or one by it.
        looks: The steps at which that was seen.
    """

    chapter: Chapter
    factor: float
    looks: tuple[Look, ...]


def wrong_ratios(run: Run) -> list[Ratio]:
    """Optimizers whose gradients are as many times too large, or too small."""
    found = [_ratio(chapter) for chapter in chapters(run)]
    return [ratio for ratio in found if ratio is not None]


def _ratio(chapter: Chapter) -> Ratio | None:
    members = len(chapter.ranks)
    if _makes_up(chapter, members):
        return None
    ratios: list[float] = []
    looks = []
    for look in chapter.looks:
        if got := _ratios(look):
            ratios += got
            looks.append(look)
    if len(ratios) < LEAST_RATIOS or not all(_is_plain(look) for look in looks):
        return None
    for factor in (float(members), 1 / members):
        if np.allclose(ratios, factor, rtol=TOLERANCE, atol=0.0):
            return Ratio(chapter, factor, tuple(looks))
    return None


def _makes_up(chapter: Chapter, members: int) -> bool:
    """Whether the learning rate looks like one that was divided by the ranks.

    It does if it has more digits than without that: 0.0125 on four ranks is 0.05.
    """
    rate = max((one.rate for look in chapter.looks for one in look.seen), default=0.0)
    return _digits(rate * members) < _digits(rate)


def _digits(number: float) -> int:
    """Significant digits of a number, as people write it."""
    return len(f"{number:.9e}".partition("e")[0].replace(".", "").rstrip("0"))


def _ratios(look: Look) -> list[float]:
    seen = look.seen
    if len({one.probed for one in seen}) > 1 or any(one.local for one in seen):
        return []
    own = np.array([one.own for one in seen])
    used = np.array([one.used for one in seen])
    if not own.size or own.shape != used.shape:
        return []
    mean, most = own.mean(axis=0), np.abs(own).max(axis=0)
    alike = np.isclose(used, used[0], rtol=1e-6, atol=0.0).all(axis=0)
    clear = alike & (np.abs(mean) > CANCELLED * most) & (most > 0.0)
    return [float(ratio) for ratio in used[0][clear] / mean[clear]]


def _is_plain(look: Look) -> bool:
    """Whether the loss was a mean, divided by nothing but the passes of the step.

    Passes as many as ranks leave open what a division was for.
    """
    members = len(look.seen)
    return all(
        one.passes != members
        and abs(one.factor * (1 if one.factor == 1.0 else one.passes) - 1.0) < TOLERANCE
        for one in look.seen
    )


def summing_lines(run: Run, ranks: tuple[int, ...]) -> list[Call]:
    """Of each line that sums tensors over ranks, a call; that which sums most first."""
    rows = run.with_op(CODE_OF["all_reduce"])
    rows = rows[run.calls["reduce_op"][rows] == REDUCE_OPS.index("sum")]
    rows = rows[run.calls["rank"][rows] == ranks[0]]
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
