"""Schedulers of learning rates that count something else than they are asked for.

What a schedule is long in, is told by the numbers: it was made for as many calls as
there are optimizer steps, or epochs, and its rate came to its end after so many.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from distdoctor.analysis.data.passes import LoaderPass, passes
from distdoctor.analysis.learning_rate.unsharded_steps import (
    divides_samples,
    steps_alone,
)
from distdoctor.analysis.learning_rate.warm_restarts import part_in_epochs
from distdoctor.analysis.source.program import Function, Program, called, calls_in
from distdoctor.analysis.source.value_search import ValueSearch
from distdoctor.model.events import Place, Shortened
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.observations.learning_rate import RateCourse, Schedule
from distdoctor.model.run import Run

_LEAST_STEPS = 6
"""Optimizer steps of a job whose schedule can be told from chance."""

_MANY_CALLS = 1.5
"""Calls for each optimizer step that are more than skipped steps explain."""

_NEAR = 0.12
"""Share by which a schedule's length may miss the number of steps, as where the last
batches of an epoch are left out, or the other way round."""

_LEAST_FALLS = 4
"""Changes downwards of a rate that make a slope."""

_LOW = 0.5
"""Share of the highest rate that a schedule ends with at the most."""

_NOTHING = 0.05
"""Share of the highest rate that is next to nothing."""

_SURELY = 2.5
"""Calls for each optimizer step beyond which the length of a course is no accident."""

_LEFT = 0.3
"""Share of the calls that come behind the end of the schedule, at the least."""

_OFTEN, _SELDOM = 4, 4
"""Calls for each epoch that are by batch; optimizer steps for each call by epoch."""

_LEAST_TWICE = 3
"""Steps behind which a schedule and a part of it are both asked, more than by chance or
to make up for something."""

_AROUND = 3
"""Lines before and behind the one that makes a scheduler that belong to it."""

_GRAVE_SHARE = 0.05
"""Share of a schedule, and of a rate, that is no trifle when it is left out."""


class ScheduleFault(StrEnum):
    """How a scheduler is asked at the wrong moments."""

    MICRO_BATCHES = "once for each micro-batch"
    BATCHES = "once for each batch"
    EPOCHS = "once for each epoch"
    EARLY = "before the optimizer"
    UNSHARDED = "once for each optimizer step"
    TWICE = "besides the schedule that it is a part of"


@dataclass(frozen=True, slots=True)
class Misstep:
    """A scheduler on one rank that is not asked as it was made for.

    Attributes:
        length: Calls that its course takes.
        epochs: Passes that the rank trained on; 0: not known.
        grave: It is no trifle.
        again: The length is that of a part of the schedule, which ends over and over.
        steps: That the rank makes in the end, if the course is that of one rank alone.
    """

    fault: ScheduleFault
    schedule: Schedule
    length: int = 0
    epochs: int = 0
    grave: bool = True
    again: bool = False
    steps: int = 0


def missteps(run: Run) -> list[list[Misstep]]:
    """Each scheduler that is asked at the wrong moments, with all ranks that do."""
    found: dict[tuple[int, ScheduleFault], list[Misstep]] = {}
    for rank in run.seen:
        for schedule in schedulers(run, rank):
            one = misstep(run, schedule)
            if one is not None:
                found.setdefault((schedule.scheduler, one.fault), []).append(one)
    return list(found.values())


def schedulers(run: Run, rank: int) -> list[Schedule]:
    """What was told last of each scheduler of a rank."""
    last = {one.scheduler: one for one in run.of(Schedule, rank)}
    return list(last.values())


def misstep(run: Run, schedule: Schedule) -> Misstep | None:
    """What is wrong with the moments at which a scheduler is asked, if anything."""
    if schedule.optimizer < 0 or schedule.calls < 1 or schedule.steps < 2:
        return None
    if _is_asked_twice(schedule):
        return Misstep(ScheduleFault.TWICE, schedule)
    if any(map(_is_asked_twice, parts_of(run, schedule))):
        return None  # its rates are not its own
    epochs = _epochs(run, schedule)
    found: Misstep | None = None
    if not run.stopped and not run.of(Shortened, schedule.rank):
        found = (
            _by_micro_batch(schedule)
            or _by_batch(run, schedule, epochs)
            or _by_epoch(run, schedule, epochs)
        )
    if found is None and not run.stopped:
        found = _unsharded(run, schedule, epochs)
    return found or _too_early(schedule, epochs)


def parts_of(run: Run, schedule: Schedule) -> list[Schedule]:
    """The schedulers that are parts of another one, and were asked themselves."""
    return [
        one for one in schedulers(run, schedule.rank) if one.outer == schedule.scheduler
    ]


def whole_of(run: Run, schedule: Schedule) -> Schedule | None:
    """The scheduler that has another one as a part."""
    of_rank = schedulers(run, schedule.rank)
    return next((one for one in of_rank if one.scheduler == schedule.outer), None)


def unequally_asked(
    run: Run, optimizer: int, ranks: Sequence[int]
) -> dict[int, Schedule]:
    """By rank, a scheduler of one optimizer that ranks ask a different number of times.

    Empty if there is none, or if its optimizer made different numbers of steps.
    """
    by_number: dict[int, dict[int, Schedule]] = {}
    for rank in ranks:
        for one in schedulers(run, rank):
            if one.optimizer == optimizer:
                by_number.setdefault(one.scheduler, {})[rank] = one
    for by_rank in by_number.values():
        whole = len(by_rank) == len(ranks)
        steps = {one.steps for one in by_rank.values()}
        if (
            whole
            and len(steps) == 1
            and len({one.calls for one in by_rank.values()}) > 1
        ):
            return by_rank
    return {}


def unequally_long(
    run: Run, optimizer: int, ranks: Sequence[int]
) -> dict[int, Schedule]:
    """By rank, a scheduler of one optimizer whose course is not as long on all ranks.

    Empty if there is none, or a length is not known.
    """
    return _unlike(run, optimizer, ranks, attrgetter("length"))


def unequally_made(
    run: Run, optimizer: int, ranks: Sequence[int]
) -> dict[int, Schedule]:
    """By rank, a scheduler of one optimizer whose functions hold unlike whole numbers.

    Such as the number of steps that each rank counts for itself. Empty if none does.
    """
    return _unlike(run, optimizer, ranks, attrgetter("numbers"))


def _unlike(
    run: Run,
    optimizer: int,
    ranks: Sequence[int],
    key: Callable[[Schedule], int | tuple[int, ...]],
) -> dict[int, Schedule]:
    """By rank, a scheduler that is not the same on all in something known of it."""
    by_number: dict[int, dict[int, Schedule]] = {}
    for rank in ranks:
        for one in schedulers(run, rank):
            if one.optimizer == optimizer and key(one):
                by_number.setdefault(one.scheduler, {})[rank] = one
    for by_rank in by_number.values():
        if len(by_rank) == len(ranks) and len(set(map(key, by_rank.values()))) > 1:
            return by_rank
    return {}


def counting(program: Program, made: Place) -> list[Place]:
    """Lines that count something, for the arguments of the call at a line.

    Args:
        program: The user's files.
        made: The line that makes a scheduler.
    """

    def is_count(value: ast.expr, _function: Function, _line: int) -> bool:
        return any(
            isinstance(part, ast.Call) and called(part) == "len"
            for part in ast.walk(value)
        )

    function = program.at(made.file, made.line)
    search = ValueSearch(program, is_sought=is_count)
    for call in [] if function is None else calls_in(function):
        if call.lineno <= made.line <= (call.end_lineno or 0):
            for value in [*call.args, *(one.value for one in call.keywords)]:
                assert function is not None
                search.add(value, function, value.lineno)
    return search.places()


def given_metrics(
    run: Run, optimizer: int, ranks: Sequence[int]
) -> dict[int, Schedule]:
    """By rank, the scheduler of one optimizer whose rate follows what it is given.

    It was never asked but with a metric, or an epoch. Empty unless all ranks have one.
    """
    by_rank = {
        rank: one
        for rank in ranks
        for one in schedulers(run, rank)
        if one.optimizer == optimizer and not one.calls and one.place is not None
    }
    return by_rank if len(by_rank) == len(ranks) else {}


def course_of(run: Run, rank: int, optimizer: int) -> RateCourse | None:
    """The rates of an optimizer; its number is as in `Schedule`."""
    courses = [one for one in run.of(RateCourse, rank) if one.optimizer == optimizer]
    return courses[-1] if courses else None


# --- one scheduler ---


def _is_asked_twice(schedule: Schedule) -> bool:
    """Whether the user's code asks a part, and the whole, behind the same steps."""
    return schedule.twice >= _LEAST_TWICE


def _by_micro_batch(schedule: Schedule) -> Misstep | None:
    """As many calls as batches, and a course as long as there are optimizer steps."""
    if schedule.steps < _LEAST_STEPS or schedule.calls < _MANY_CALLS * schedule.steps:
        return None
    if schedule.length and not _is_near(schedule.length, schedule.steps):
        return None
    if not _ends(schedule):
        return None
    if not _is_near(schedule.end, schedule.steps):
        return None
    # A rate that is halved in the first half of the training may be on purpose.
    grave = (
        bool(schedule.length)
        or schedule.turned
        or schedule.lowest <= _NOTHING * schedule.highest
        or schedule.calls >= _SURELY * schedule.steps
    )
    return Misstep(
        ScheduleFault.MICRO_BATCHES,
        schedule,
        schedule.length or schedule.end,
        grave=grave,
    )


def _by_batch(run: Run, schedule: Schedule, epochs: int) -> Misstep | None:
    """A call for each optimizer step, and a course as long as there are epochs.

    That it has their number may be chance; where it is made, it is called by a name.
    """
    if epochs < 2 or schedule.calls < _OFTEN * epochs or schedule.steps < _LEAST_STEPS:
        return None
    if (
        schedule.calls > _MANY_CALLS * schedule.steps
        or schedule.steps > _MANY_CALLS * schedule.calls
    ):
        return None
    part = part_in_epochs(run, schedule, epochs)
    whole = schedule.length == epochs
    # The rate of a whole course turns once; that of a part of it over and over.
    if part is not None and not (whole and schedule.end * _OFTEN <= schedule.calls):
        return Misstep(
            ScheduleFault.BATCHES, schedule, part[0], epochs, part[1], again=True
        )
    if schedule.length:
        named = "epoch" in _near_its_making(run, schedule).lower()
        named = named or (part is not None and part[1])
        if not whole or not (schedule.end > 0 or named):
            return None
        late = schedule.rises > 1 and schedule.end * _OFTEN > schedule.calls
        return Misstep(
            ScheduleFault.BATCHES, schedule, epochs, epochs, named, again=late
        )
    to_nothing = schedule.lowest <= _NOTHING * schedule.highest
    sick = _ends(schedule) and to_nothing and abs(schedule.end - epochs) <= 1
    return Misstep(ScheduleFault.BATCHES, schedule, epochs, epochs) if sick else None


def _by_epoch(run: Run, schedule: Schedule, epochs: int) -> Misstep | None:
    """A call for each epoch, and a course as long as there are optimizer steps."""
    if epochs < 2 or abs(schedule.calls - epochs) > 1 or schedule.steps < _LEAST_STEPS:
        return None
    if schedule.steps < _SELDOM * schedule.calls:
        return None
    lengths = [schedule.length] if schedule.length else schedule.numbers
    if schedule.steps not in lengths or _is_written(run, schedule, schedule.steps):
        return None
    return Misstep(ScheduleFault.EPOCHS, schedule, schedule.steps, epochs)


def _unsharded(run: Run, schedule: Schedule, epochs: int) -> Misstep | None:
    """A call for each step, and a course for the steps that one rank alone would make.

    A part of a longer training may be as long by chance, but for a source that divides
    the number of samples.
    """
    if epochs < 1 or schedule.steps < _LEAST_STEPS:
        return None
    if (
        schedule.calls > _MANY_CALLS * schedule.steps
        or schedule.steps > _MANY_CALLS * schedule.calls
    ):
        return None
    alone = steps_alone(run, schedule.rank, epochs)
    if alone is None:
        return None
    lengths = [schedule.length] if schedule.length else list(schedule.numbers)
    wanted = alone.wanted - (set() if schedule.length else alone.sizes)
    steps = alone.steps
    found = [one for one in lengths if one in wanted and one > _MANY_CALLS * steps]
    if not found or any(_is_near(one, steps) for one in lengths):
        return None
    grave = divides_samples(run) and not _is_written(run, schedule, found[0])
    return Misstep(
        ScheduleFault.UNSHARDED, schedule, found[0], epochs, grave, steps=steps
    )


def _too_early(schedule: Schedule, epochs: int) -> Misstep | None:
    """Each call comes before the step that it belongs to, also the first."""
    if (
        schedule.early != 1
        or schedule.scaled
        or not schedule.alike
        or schedule.second == schedule.begin
    ):
        return None
    by_step = abs(schedule.calls - schedule.steps) <= 1
    if not by_step and (epochs < 2 or abs(schedule.calls - epochs) > 1):
        return None
    higher = max(schedule.begin, schedule.second)
    changed = abs(schedule.second - schedule.begin) / higher if higher > 0.0 else 0.0
    grave = 1 / schedule.calls >= _GRAVE_SHARE and changed >= _GRAVE_SHARE
    return Misstep(ScheduleFault.EARLY, schedule, epochs=epochs, grave=grave)


def _ends(schedule: Schedule) -> bool:
    """Whether a rate fell along a slope to its end, long before the last call."""
    return (
        schedule.falls >= _LEAST_FALLS
        and 0.0 <= schedule.lowest <= _LOW * schedule.highest
        and schedule.calls - schedule.end >= _LEFT * schedule.calls
    )


def _is_written(run: Run, schedule: Schedule, number: int) -> bool:
    """Whether a number stands where such a scheduler is made, and was not computed.

    Then it is as many as there are steps by chance, as round numbers are.
    """
    near = _near_its_making(run, schedule).replace("_", "")
    return re.search(rf"\b{number}\b", near) is not None


def _near_its_making(run: Run, schedule: Schedule) -> str:
    """The lines around those that make such a scheduler."""
    found: list[str] = []
    for made in run.of(Scheduled, schedule.rank):
        if made.kind == schedule.kind and made.place is not None:
            lines = run.sources.get(made.place.file, "").splitlines()
            first = max(0, made.place.line - 1 - _AROUND)
            found += lines[first : made.place.line + _AROUND]
    return "\n".join(found)


def _is_near(length: int, steps: int) -> bool:
    return abs(length - steps) <= max(2.0, _NEAR * steps)


def _epochs(run: Run, schedule: Schedule) -> int:
    """Passes over a loader that an optimizer made steps on, if all are of one loop."""
    trained: Sequence[LoaderPass] = [
        one for one in passes(run, schedule.rank) if one.steps
    ]
    its = [one for one in trained if one.read.optimizer == schedule.optimizer + 1]
    trained = its or trained  # passes count optimizers from 1
    return len(trained) if len({one.key for one in trained}) == 1 else 0


# --- a picture ---

_WIDE = 48
_BLOCKS = "▁▂▃▄▅▆▇█"


def rate_details(run: Run, rank: int, optimizer: int) -> dict[str, object]:
    """Details of a finding: a picture of the rates, and their figures."""
    course = course_of(run, rank, optimizer)
    if course is None or not course.rates:
        return {}
    return {
        "picture": list(_drawn(course)),
        "learning_rate": {
            "steps": course.steps,
            "first": course.rates[0],
            "highest": course.highest,
            "last": course.last,
            "stride": course.stride,
            "rates": list(course.rates),
        },
    }


def _drawn(course: RateCourse) -> Iterator[str]:
    rates = list(course.rates)
    if (course.steps - 1) % course.stride:
        rates.append(course.last)
    yield f"learning rate |{sparkline(rates)}|"
    yield (
        f"steps 1 to {course.steps:,}: first {course.rates[0]:.4g}, "
        f"highest {course.highest:.4g}, last {course.last:.4g}"
    )


def sparkline(values: Sequence[float]) -> str:
    """Values as blocks, zero being the lowest, and the highest value the highest.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([0.1, 0.1])
    '██'
    """
    shown = min(_WIDE, len(values))
    chosen = [values[n * len(values) // shown] for n in range(shown)]
    if shown:
        chosen[-1] = values[-1]
    most = max(values, default=0.0)
    last = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round(last * max(0.0, value) / most)] if most > 0.0 else _BLOCKS[0]
        for value in chosen
    )
