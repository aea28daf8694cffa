"""What becomes of gradients that a GradScaler has scaled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose, log10

from distdoctor.analysis.optimizer_step.gradient_states import ProtocolFault
from distdoctor.analysis.optimizer_step.step_cycles import (
    OptimizerHistory,
    lines_of,
    optimizer_histories,
)
from distdoctor.model.events import Event
from distdoctor.model.observations.amp import (
    EARLY,
    STEPPED,
    UNSCALED,
    UNUSED,
    Handed,
    Limited,
    Refused,
    Scaling,
)
from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    CHANGED,
    CLEAR,
    CLIP,
    DROP,
    EXCHANGE,
    SCALED,
    STEP,
    UNSCALE,
    Cycle,
    unpacked,
)
from distdoctor.model.run import Run

_LEAST = 2
"""Cycles with a fault, without which half of all must have it."""

_DIGITS = 4
"""Of a threshold that somebody has chosen."""

_ALIKE = 1e-3
_LEAST_ALIKE = 3
"""Times that clipped gradients have one size."""


def is_scaling(run: Run, rank: int) -> bool:
    """Whether a GradScaler of a rank multiplies losses by something else than 1.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Whether one does, at any step that was looked at.
    """
    return any(one.scale != 1.0 for one in run.of(Scaling, rank))


def faulty(
    run: Run, *faults: ProtocolFault
) -> dict[ProtocolFault, list[list[OptimizerHistory]]]:
    """By fault and optimizer, the ranks on which it is no exception.

    Args:
        run: The run that is judged.
        *faults: What must not follow what.

    Returns:
        By fault, a list of the histories of its ranks for each optimizer.
    """
    found: dict[ProtocolFault, dict[int, list[OptimizerHistory]]] = {}
    for course in optimizer_histories(run):
        if not is_scaling(run, course.rank):
            continue
        for fault in faults:
            count = course.faults.get(fault, 0)
            if count >= _LEAST or (count and 2 * count >= course.steps):
                ranks = found.setdefault(fault, {}).setdefault(course.optimizer, [])
                ranks.append(course)
    return {fault: list(several.values()) for fault, several in found.items()}


def last_words(cycle: Cycle) -> list[str]:
    """What was done to the gradients of its step, from the last scaled loss on.

    Args:
        cycle: What happened to the gradients of one step.

    Returns:
        The words without their ends.
    """
    words = [word.partition("/")[0] for word in unpacked(cycle.words)]
    at = max((n for n, word in enumerate(words) if word == SCALED), default=-1)
    return words[at + 1 :]


# --- clipped while scaled ---


@dataclass(frozen=True, slots=True)
class ScaledClip:
    """Gradients of an optimizer that one rank clips while they are scaled.

    Attributes:
        how: "norm" or "value".
        limit: The threshold.
        found: Size of gradients before; 0.0: not known.
        lines: Those that clip.
        proof: What tells it.
        by_hand: It was done by the job itself.
    """

    rank: int
    optimizer: int
    how: str
    limit: float
    found: float
    scale: float
    lines: tuple[Event, ...]
    proof: tuple[Event, ...]
    by_hand: bool = False


def clips(run: Run) -> list[list[ScaledClip]]:
    """Clips of scaled gradients; by optimizer, those of each rank.

    Args:
        run: The run that is judged.

    Returns:
        For each optimizer a list, one entry for each rank.
    """
    found: dict[tuple[int, bool], list[ScaledClip]] = {}
    histories: dict[int, dict[int, OptimizerHistory]] = {}
    for one in optimizer_histories(run):
        histories.setdefault(one.rank, {})[one.optimizer] = one
    for rank in run.seen:
        mine = histories.get(rank, {})
        for clip in (*_by_function(run, rank, mine), *_by_hand(run, rank)):
            known = found.setdefault((clip.optimizer, clip.by_hand), [])
            if not known or known[-1].rank != rank:
                known.append(clip)
    return list(found.values())


def _by_function(
    run: Run, rank: int, mine: Mapping[int, OptimizerHistory]
) -> Iterator[ScaledClip]:
    for limited in run.of(Limited, rank):
        course = mine.get(limited.optimizer)
        if course is None or not _is_chosen(limited.limit, limited.scale):
            continue
        if limited.found <= limited.limit or limited.scale == 1.0:
            continue
        cycle = course.first.get(ProtocolFault.CLIPPED_SCALED)
        if cycle is None or _are_given(cycle):
            continue
        lines: tuple[Event, ...] = tuple(lines_of(run, course, CLIP)) or (limited,)
        yield ScaledClip(
            rank,
            limited.optimizer,
            limited.how,
            limited.limit,
            limited.found,
            limited.scale,
            lines,
            (limited, cycle),
        )


def _are_given(cycle: Cycle) -> bool:
    """Whether the job may have divided gradients itself, before it clips them."""
    words = last_words(cycle)
    before = words[: words.index(CLIP)] if CLIP in words else words
    return CHANGED in before and EXCHANGE not in before


def _is_chosen(limit: float, scale: float) -> bool:
    """Whether somebody means unscaled gradients by a threshold.

    Those for scaled ones are made by a multiplication with the scale: 32768 is 0.5
    times 65536, and has more digits than that.
    """
    if not limit or not scale or limit >= scale:
        return False
    digits = _digits(limit)
    return digits <= _DIGITS and digits <= _digits(limit / scale)


def _digits(number: float) -> int:
    """Decimal digits that tell a number."""
    text = f"{number:.12e}".partition("e")[0].replace(".", "").strip("-0")
    return max(1, len(text))


def _by_hand(run: Run, rank: int) -> Iterator[ScaledClip]:
    """Gradients that were changed, and then have one size at all times."""
    by_optimizer: dict[int, list[Handed]] = {}
    for one in run.of(Handed, rank):
        by_optimizer.setdefault(one.optimizer, []).append(one)
    for optimizer, several in by_optimizer.items():
        if len(several) < _LEAST_ALIKE:
            continue
        for how in ("norm", "largest"):
            sizes = [getattr(one, how) for one in several]
            limit = _rounded(max(sizes))
            clipped = [n for n in sizes if isclose(n, max(sizes), rel_tol=_ALIKE)]
            scales = {one.scale for one in several}
            if len(clipped) < _LEAST_ALIKE or 2 * len(clipped) < len(sizes):
                continue
            if scales == {1.0} or not all(_is_chosen(limit, one) for one in scales):
                continue
            yield ScaledClip(
                rank,
                optimizer,
                "norm" if how == "norm" else "value",
                limit,
                0.0,
                several[-1].scale,
                tuple(several[:1]),
                tuple(several[:_LEAST_ALIKE]),
                by_hand=True,
            )
            break


def _rounded(number: float) -> float:
    """To three digits."""
    if number <= 0.0:
        return 0.0
    return round(number, 2 - int(log10(number) // 1))


# --- out of turn ---


def refusals(run: Run, *whys: str) -> list[list[Refused]]:
    """What GradScalers refused, by the reason and optimizer; of each rank the first.

    Args:
        run: The run that is judged.
        *whys: Reasons, as `reason` gives them.

    Returns:
        For each reason and optimizer a list, one entry for each rank.
    """
    found: dict[tuple[str, int], dict[int, Refused]] = {}
    for rank in run.seen:
        for one in run.of(Refused, rank):
            why = reason(one)
            if why in whys:
                found.setdefault((why, one.optimizer), {}).setdefault(rank, one)
    return [list(several.values()) for several in found.values()]


NO_UPDATE, EARLY_UPDATE = "no update", "early update"
TWICE, ADDED, NO_SCALE = "twice", "added", "no scale"
"""What a GradScaler refuses."""


def reason(refused: Refused) -> str:
    """What was done out of turn; "": something else.

    Args:
        refused: What a scaler refused, and what had happened before.

    Returns:
        One of the names of this module, or "".
    """
    words = [word.partition("/")[0] for word in unpacked(refused.words)]
    if refused.why == STEPPED:
        return NO_UPDATE
    if refused.why == UNUSED:
        return NO_SCALE if refused.method != "update" else ""
    if refused.why == EARLY:
        return EARLY_UPDATE if SCALED in words else ""
    places = [n for n, word in enumerate(words) if word == UNSCALE]
    if refused.why != UNSCALED or len(places) < 2:
        return ""
    between = words[places[-2] + 1 : places[-1]]
    if not {SCALED, BACKWARD} & set(between):
        return TWICE
    return NO_UPDATE if {CLEAR, DROP} & set(between) else ADDED


def is_by_passed(cycle: Cycle) -> bool:
    """Whether a step was made with what is still scaled, as far as it was seen.

    Args:
        cycle: What happened to the gradients of one step.

    Returns:
        Whether it was.
    """
    words = last_words(cycle)
    return words[-1:] == [STEP] and CHANGED not in words
