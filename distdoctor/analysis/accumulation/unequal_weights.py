"""What the batches weigh that steps are made with, if several are accumulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import median

from distdoctor.analysis.learning_rate.rate_divisions import rates_divided_by_batches
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.events import Place
from distdoctor.model.observations.gradients import Gradients, Holds, Weighed
from distdoctor.model.observations.optimizer_step import (
    CHANGED,
    CLIP,
    DIVIDED,
    Cycle,
    unpacked,
)
from distdoctor.model.run import Run

LEAST_LOOKS = 2
"""Steps at which something was seen; once may be an accident."""

MUCH_LARGER = 1.5
"""How many times the mean's gradients are, where it is an error."""

TOLD = 0.1
"""How much more an element weighs than another of the same step, to be told of."""

MUCH = 0.2
"""The same, where it is an error."""

LEAST_STEPS = 3
"""Steps at which ranks were seen to have counts of their own."""

FAR = 0.5
"""How much more an element weighs on one rank than on another, in the middle of steps.

Source of the figure: a guess, above what padding alone does to batches of a few samples
that are drawn at random; so it is a warning.
"""

TWICE = 1.0
"""The same, where one rank is always the one with the most: then it is no matter of
which samples were drawn, and an error."""

CHANCE = 0.05
"""Of one rank having the most in all steps that were looked at, of ranks that draw."""

_MOST_SHARE = 0.75
"""Of the steps that were looked at, those at which ranks' counts differ at all."""

_LEAST_SHARE = 0.25
"""Of the steps that were looked at, those that cannot have been made with the smaller
batch that ends an epoch."""

_CLOSE = 1e-4

_SAME = 0.02
"""By how much what became of gradients may miss a factor: they may be bfloat16."""


@dataclass(frozen=True, slots=True)
class UndividedAccumulation:
    """Optimizer that gets the sum of the gradients of several mean losses.

    Attributes:
        batches: To most of its steps.
        seen: Its steps that were looked at.
        times: How many times the mean's the gradients are; in the middle of the steps
            if they are made smaller.
        smaller: They were made smaller before each, as clipping does.
        adaptive: It divides gradients by their size.
    """

    rank: int
    batches: int
    seen: tuple[Weighed, ...]
    times: float
    smaller: bool
    adaptive: bool


@dataclass(frozen=True, slots=True)
class UnequalMeans:
    """Optimizer whose steps are made with means of unequally many elements.

    Attributes:
        batches: To most of its steps.
        seen: The uneven ones of its steps that were looked at.
        excess: How much more an element weighs than another, in the middle of those.
        looked: How many steps were looked at.
    """

    rank: int
    batches: int
    seen: tuple[Weighed, ...]
    excess: float
    looked: int


def undivided(run: Run) -> list[list[UndividedAccumulation]]:
    """Of each line that steps with sums of means, what each rank does there.

    Args:
        run: The run that is judged.

    Returns:
        For each line and number of batches a list, one entry for each rank.
    """
    found: dict[tuple[Place | None, int], list[UndividedAccumulation]] = {}
    means = _means(run)
    for rank, number, looks in _optimizers(run):
        accumulation = _undivided(run, rank, number, looks, means)
        if accumulation is not None:
            found.setdefault(
                (accumulation.seen[0].place, accumulation.batches), []
            ).append(accumulation)
    return list(found.values())


def uneven(run: Run) -> list[list[UnequalMeans]]:
    """Of each line that steps with means of unequal counts, what each rank does.

    Args:
        run: The run that is judged.

    Returns:
        For each line and number of batches a list, one entry for each rank.
    """
    found: dict[tuple[Place | None, int], list[UnequalMeans]] = {}
    for rank, _, looks in _optimizers(run):
        unequal = _uneven(rank, looks)
        if unequal is not None:
            found.setdefault((unequal.seen[0].place, unequal.batches), []).append(
                unequal
            )
    return list(found.values())


def _optimizers(run: Run) -> Iterator[tuple[int, int, list[Weighed]]]:
    for rank in run.seen:
        looks: dict[int, list[Weighed]] = {}
        for one in run.of(Weighed, rank):
            if _is_regular(one):
                looks.setdefault(one.optimizer, []).append(one)
        for number, of_one in looks.items():
            yield rank, number, of_one


def _is_regular(look: Weighed) -> bool:
    """Whether as many backward passes are made on each batch."""
    return look.batches > 1 and len(look.factors) % look.batches == 0


# --- not divided ---


def _undivided(
    run: Run,
    rank: int,
    number: int,
    looks: Sequence[Weighed],
    means: dict[tuple[int, int], float],
) -> UndividedAccumulation | None:
    looks = [look for look in looks if look.own]
    if rates_divided_by_batches(run):
        return None
    if len(looks) < LEAST_LOOKS or not all(_is_sum(look, means, run) for look in looks):
        return None
    if len({round(look.factors[0], 3) for look in looks}) > 1:
        return None
    became = [_became(look, means, run) for look in looks]
    pairs = list(zip(became, looks, strict=True))
    plain = [abs(one - 1.0) <= _SAME for one in became]
    # One that is clipped to just that is an accident, and most are none.
    if 2 * sum(_is_divided(one, look) for one, look in pairs) > len(pairs):
        return None
    if not any(plain):
        steady = max(became) - min(became) <= _SAME * max(became)
        if steady or not all(0.0 < one < 1.0 for one in became):
            return None
        # What is divided first, and clipped then, is never more than that.
        least = max(one * look.batches for one, look in pairs) <= 1.0 + _SAME
        if least and not _is_only_clipped(run, rank, number):
            return None
    batches = _usual(looks)
    holds = [one for one in run.of(Holds, rank) if one.optimizer == number]
    return UndividedAccumulation(
        rank=rank,
        batches=batches,
        seen=tuple(looks),
        times=float(batches) if any(plain) else median(one * batches for one in became),
        smaller=not any(plain),
        adaptive=any(one.adaptive for one in holds),
    )


def _is_only_clipped(run: Run, rank: int, number: int) -> bool:
    """Whether clipping was seen before each step, and nothing that would divide."""
    cycles = [one for one in run.of(Cycle, rank) if one.optimizer == number]
    words = [{*unpacked(one.words)} for one in cycles]
    return bool(words) and all(
        CLIP in of_cycle and of_cycle.isdisjoint({CHANGED, DIVIDED})
        for of_cycle in words
    )


def _is_sum(look: Weighed, means: dict[tuple[int, int], float], run: Run) -> bool:
    """Whether the losses are means, and nothing was divided by their number.

    All may be halved, as squared errors are.
    """
    first = look.factors[0]
    plain = any(isclose(first, one, rel_tol=_CLOSE) for one in (1.0, 0.5))
    return (
        (plain or _is_share_of_sum(look, means, run))
        and all(isclose(factor, first, rel_tol=_CLOSE) for factor in look.factors)
        and not any(
            _is_by(constant, number) or isclose(constant * number, run.world_size)
            for constant in look.constants
            for number in {look.batches, len(look.factors)}
        )
    )


def _is_share_of_sum(
    look: Weighed, means: dict[tuple[int, int], float], run: Run
) -> bool:
    """Whether losses are divided by the number of ranks, whose gradients are summed up.

    Where they are not, that number is the window's: of four ranks, a fourth.
    """
    size, mean = run.world_size, means.get((look.optimizer, look.window), 0.0)
    divided = isclose(look.factors[0] * size, 1.0, rel_tol=_CLOSE)
    return divided and isclose(look.used, mean * size, rel_tol=_SAME)


def _is_by(constant: float, number: int) -> bool:
    return any(
        abs(constant - one) <= _CLOSE * one for one in (float(number), 1 / number)
    )


def _is_divided(became: float, look: Weighed) -> bool:
    return any(
        abs(became * number - 1.0) <= _SAME
        for number in {look.batches, len(look.factors)}
    )


def _became(look: Weighed, means: dict[tuple[int, int], float], run: Run) -> float:
    """What gradients were multiplied by between backward and the step.

    Ranks may have averaged them there, or have summed up what was divided before.
    """
    size = run.world_size
    mean = means.get((look.optimizer, look.window), 0.0)
    found = [look.used / look.own]
    if mean:
        found.append(look.used / mean)
        if isclose(look.factors[0] * size, 1.0, rel_tol=_CLOSE):
            found.append(look.used / mean / size)
    return min(found, key=lambda one: abs(one - 1.0))


def _means(run: Run) -> dict[tuple[int, int], float]:
    """By optimizer and window, the mean over the ranks of what backward gave."""
    own: dict[tuple[int, int], list[float]] = {}
    for rank in run.seen:
        for look in filter(_is_regular, run.of(Weighed, rank)):
            own.setdefault((look.optimizer, look.window), []).append(look.own)
    whole = {key: of for key, of in own.items() if len(of) == run.world_size}
    return {key: sum(of) / len(of) for key, of in whole.items()}


# --- unequal counts ---


@dataclass(frozen=True, slots=True)
class UnevenRanks:
    """Ranks whose losses are means of unequally many elements, and weigh the same.

    Attributes:
        looks: What each rank tells of the steps that were looked at.
        worst: The most uneven one of them.
        excess: How much more an element weighs than another, in the middle of those.
        steady: One rank has the most in each of them, and hardly by chance.
    """

    ranks: tuple[int, ...]
    looks: tuple[tuple[Weighed, ...], ...]
    worst: tuple[Weighed, ...]
    excess: float
    steady: bool


def uneven_ranks(run: Run) -> list[UnevenRanks]:
    """Replicas of a wrapped model whose batches hold far different counts.

    Nearly each padded batch has another count than that of the next rank; what is told
    is more than that. The last look may be at the smaller batch that ends an epoch.

    Args:
        run: The run that is judged.

    Returns:
        One for each set of replicas in which it is so.
    """
    found = []
    for ranks in replicas(run):
        if not run.has_seen(ranks):
            continue
        by_window: dict[tuple[int, int], list[Weighed]] = {}
        for rank in ranks:
            for one in run.of(Weighed, rank):
                if one.batches == 1:
                    by_window.setdefault((one.optimizer, one.window), []).append(one)
        looks = [tuple(of) for of in by_window.values() if len(of) == len(ranks)]
        for number in _averaged(run, ranks):
            one_of = [of for of in looks if of[0].optimizer == number]
            uneven = _across(tuple(ranks), one_of)
            if uneven is not None:
                found.append(uneven)
    return found


def _averaged(run: Run, ranks: Sequence[int]) -> list[int]:
    """Numbers of the optimizers that step with the same gradients on all these ranks.

    Where ranks also train models of their own, one's optimizer may have the number of
    another's.
    """
    by_rank = [
        {(one.optimizer, one.step): one.prints for one in run.of(Gradients, rank)}
        for rank in ranks
    ]
    alike: dict[int, bool] = {}
    for key in sorted(set(by_rank[0]).intersection(*by_rank[1:])):
        same = len({one[key] for one in by_rank}) == 1
        alike[key[0]] = alike.get(key[0], True) and same
    return [number for number, same in alike.items() if same]


def _across(
    ranks: tuple[int, ...], looks: Sequence[tuple[Weighed, ...]]
) -> UnevenRanks | None:
    alike = [of for of in looks if len({round(one.factors[0], 3) for one in of}) == 1]
    if len(alike) < LEAST_STEPS or len(alike) < len(looks):
        return None
    by_excess = sorted(alike, key=_apart)
    excess = median(map(_apart, by_excess))
    enough = sum(_apart(of) >= TOLD for of in by_excess) >= _MOST_SHARE * len(alike)
    if excess < FAR or not enough:
        return None
    most = {max(range(len(of)), key=lambda n: of[n].counts[0]) for of in alike}
    steady = len(most) == 1 and len(ranks) ** (1.0 - len(alike)) <= CHANCE
    return UnevenRanks(ranks, tuple(alike), by_excess[-1], excess, steady)


def _apart(looks: Sequence[Weighed]) -> float:
    """How much more an element weighs on one rank than on another, in one step."""
    counts = [one.counts[0] for one in looks]
    return max(counts) / min(counts) - 1.0


def _uneven(rank: int, looks: Sequence[Weighed]) -> UnequalMeans | None:
    known = [look for look in looks if _weighs_alike(look)]
    if len(known) < LEAST_LOOKS or len(known) < len(looks):
        return None
    seen = [look for look in known if excess_of(look) >= TOLD]
    enough = max(LEAST_LOOKS, _LEAST_SHARE * len(known))
    if len(seen) < enough:
        return None
    return UnequalMeans(
        rank=rank,
        batches=_usual(seen),
        seen=tuple(seen),
        excess=median(map(excess_of, seen)),
        looked=len(known),
    )


def _weighs_alike(look: Weighed) -> bool:
    """Whether each batch weighs as much as the others, whatever it is a mean of."""
    first = look.factors[0]
    return (
        first > 0.0
        and len(look.factors) == look.batches
        and all(abs(factor - first) <= _CLOSE * first for factor in look.factors)
        and all(count > 0.0 for count in look.counts)
    )


def excess_of(look: Weighed) -> float:
    """How much more an element of one batch weighs than one of another; 0.0: as much.

    A last batch that is the smallest may be the end of an epoch, and is left out.

    Args:
        look: The counts of the batches of one step, at least two of them.

    Returns:
        The greatest count by the least, less 1.
    """
    counts = list(look.counts)
    if counts[-1] == min(counts):
        counts.pop()
    return max(counts) / min(counts) - 1.0


def _usual(looks: Sequence[Weighed]) -> int:
    return Counter(look.batches for look in looks).most_common(1)[0][0]
