"""Communication that no computation overlaps, as traces of torch.profiler show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.model.observations.collectives import TracedLateness, TracedSteps
from distdoctor.model.run import Run

_SHARE = 1 / 3
"""Of a step, from which on it is told: more than large jobs usually have.

Of all GPU hours of a large fleet, 14 to 32 % went by in communication that nothing
overlaps (Hsia et al. 2024, arXiv 2310.02784).
"""

_OF_EACH = 1 / 4
_STEADY = 0.8  # of the steps have at least that: no single slow one makes the share
_FEWEST_STEPS = 3
_MOSTLY = 0.5  # of what is exposed is waiting: then who is waited for matters
_ONE_ALONE = 0.9  # of all waiting is for one rank


@dataclass(frozen=True, slots=True)
class ExposedCalls:
    """Ranks on which much of each step is communication that nothing overlaps.

    Attributes:
        steps: Of each such rank.
        share: Of their time, that it takes.
        step_ms: Time of a step, on average.
        exposed_ms: Of that, communication that nothing overlaps.
        waiting: Of that, the share in which another rank had not come; None: unknown.
        why: It is unknown.
        late: The rank for which nearly all of the waiting is; None: no single one.
    """

    steps: tuple[TracedSteps, ...]
    share: float
    step_ms: float
    exposed_ms: float
    waiting: float | None
    why: str
    late: TracedLateness | None

    @property
    def ranks(self) -> tuple[int, ...]:
        """On which it was seen, ascending."""
        return tuple(one.rank for one in self.steps)


def traced(run: Run) -> list[TracedSteps]:
    """What traces tell of the steps of each rank.

    Args:
        run: The run that is judged.
    """
    return [one for rank in run.seen for one in run.of(TracedSteps, rank)]


def exposed_calls(run: Run) -> Iterator[ExposedCalls]:
    """Where communication that nothing overlaps takes much of each step.

    Args:
        run: The run that is judged.

    Yields:
        At most one for ranks that computed on GPUs, and one for others.
    """
    for kernels in (True, False):
        mine = [one for one in traced(run) if one.kernels == kernels and _is_much(one)]
        if mine:
            yield _exposed(run, mine)


def _is_much(one: TracedSteps) -> bool:
    pairs = [*zip(one.exposed_us, one.step_us, strict=True)]
    if len(pairs) < _FEWEST_STEPS or not sum(one.step_us):
        return False
    each = sum(exposed >= _OF_EACH * step for exposed, step in pairs)
    share = sum(one.exposed_us) / sum(one.step_us)
    return share >= _SHARE and each >= _STEADY * len(pairs)


def _exposed(run: Run, mine: Sequence[TracedSteps]) -> ExposedCalls:
    steps = sum(len(one.step_us) for one in mine)
    all_us = sum(sum(one.step_us) for one in mine)
    exposed_us = sum(sum(one.exposed_us) for one in mine)
    why = next((one.why for one in mine if one.why), "")
    waiting_us = sum(sum(one.waiting_us) for one in mine)
    waiting = None if why else waiting_us / exposed_us
    return ExposedCalls(
        steps=tuple(mine),
        share=exposed_us / all_us,
        step_ms=all_us / steps / 1000,
        exposed_ms=exposed_us / steps / 1000,
        waiting=waiting,
        why=why,
        late=_late(run) if waiting is not None and waiting >= _MOSTLY else None,
    )


def _late(run: Run) -> TracedLateness | None:
    every = [one for rank in run.seen for one in run.of(TracedLateness, rank)]
    latest = max(every, key=lambda one: one.waited_us, default=None)
    whole = sum(one.waited_us for one in every)
    if latest is None or latest.waited_us < _ONE_ALONE * whole:
        return None
    return latest
