"""Parts of a schedule that come to their end over and over, as they count epochs."""

from __future__ import annotations

from distdoctor.analysis.learning_rate.schedule_units import Unit, unit_of_parts
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.observations.learning_rate import Schedule
from distdoctor.model.run import Run

_LEAST_RISES = 2
"""Times that a rate goes up again, at the least: once may be the end of a job."""

_BY_EPOCH = 2
"""Restarts in each epoch that nobody asks for who says nothing of steps."""

_LEFT = 0.3
"""Share of the calls that come behind the end of the schedule, at the least."""

_NOTHING = 0.05
"""Share of the highest rate that is next to nothing."""


def part_in_epochs(
    run: Run, schedule: Schedule, epochs: int
) -> tuple[int, bool] | None:
    """The length of a part that is asked for each batch, and was made for epochs.

    Args:
        run: What happened.
        schedule: A scheduler that is asked for each batch.
        epochs: That the rank trained on.

    Returns:
        The length, and whether the source says so; else it is told by how often the
        rate begins anew. None if there is none.
    """
    per_epoch = schedule.calls // epochs
    short = [one for one in schedule.parts if 2 * one <= per_epoch]
    if not short:
        return None
    again = schedule.rises >= _LEAST_RISES
    unit = unit_of_parts(run, schedule.rank)
    if unit is Unit.EPOCHS and (again or _is_spent(schedule)):
        return short[-1], True
    if unit is Unit.UNTOLD and schedule.rises >= _BY_EPOCH * epochs:
        return short[-1], False
    return None


def _is_spent(schedule: Schedule) -> bool:
    """Whether the rate was next to nothing for all the rest."""
    return (
        schedule.end > 0
        and schedule.lowest <= _NOTHING * schedule.highest
        and schedule.calls - schedule.end >= _LEFT * schedule.calls
    )


def making_part(run: Run, schedule: Schedule, length: int) -> list[Scheduled]:
    """Where the part of a schedule was made that is so long.

    Empty if that is the schedule itself, or several lines make such parts.
    """
    kinds = {
        kind
        for part, kind in zip(schedule.parts, schedule.kinds, strict=False)
        if part == length
    } - {schedule.kind}
    made = [one for one in run.of(Scheduled, schedule.rank) if one.kind in kinds]
    return made if len({one.place for one in made}) == 1 else []
