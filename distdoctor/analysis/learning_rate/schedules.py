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
    told: Schedule
    length: int = 0
    epochs: int = 0
    grave: bool = True
    again: bool = False
    steps: int = 0


def missteps(run: Run) -> list[list[Misstep]]:
    """Each scheduler that is asked at the wrong moments, with all ranks that do."""
    found: dict[tuple[int, ScheduleFault], list[Misstep]] = {}
    for rank in run.seen:
        for told in schedulers(run, rank):
            one = misstep(run, told)
            if one is not None:
                found.setdefault((told.scheduler, one.fault), []).append(one)
    return list(found.values())


def schedulers(run: Run, rank: int) -> list[Schedule]:
    """What was told last of each scheduler of a rank."""
    last = {one.scheduler: one for one in run.of(Schedule, rank)}
    return list(last.values())


def misstep(run: Run, told: Schedule) -> Misstep | None:
    """What is wrong with the moments at which a scheduler is asked, if anything."""
    if told.optimizer < 0 or told.calls < 1 or told.steps < 2:
        return None
    if _is_asked_twice(told):
        return Misstep(ScheduleFault.TWICE, told)
    if any(map(_is_asked_twice, parts_of(run, told))):
        return None  # its rates are not its own
    epochs = _epochs(run, told)
    found: Misstep | None = None
    if not run.stopped and not run.of(Shortened, told.rank):
        found = (
            _by_micro_batch(told)
            or _by_batch(run, told, epochs)
            or _by_epoch(run, told, epochs)
        )
    if found is None and not run.stopped:
        found = _unsharded(run, told, epochs)
    return found or _too_early(told, epochs)


def parts_of(run: Run, told: Schedule) -> list[Schedule]:
    """The schedulers that are parts of another one, and were asked themselves."""
    return [one for one in schedulers(run, told.rank) if one.outer == told.scheduler]


def whole_of(run: Run, told: Schedule) -> Schedule | None:
    """The scheduler that has another one as a part."""
    of_rank = schedulers(run, told.rank)
    return next((one for one in of_rank if one.scheduler == told.outer), None)


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
    for told in by_number.values():
        whole = len(told) == len(ranks)
        steps = {one.steps for one in told.values()}
        if whole and len(steps) == 1 and len({one.calls for one in told.values()}) > 1:
            return told
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
    told_by: Callable[[Schedule], int | tuple[int, ...]],
) -> dict[int, Schedule]:
    """By rank, a scheduler that is not the same on all in something known of it."""
    by_number: dict[int, dict[int, Schedule]] = {}
    for rank in ranks:
        for one in schedulers(run, rank):
            if one.optimizer == optimizer and told_by(one):
                by_number.setdefault(one.scheduler, {})[rank] = one
    for told in by_number.values():
        if len(told) == len(ranks) and len(set(map(told_by, told.values()))) > 1:
            return told
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
    told = {
        rank: one
        for rank in ranks
        for one in schedulers(run, rank)
        if one.optimizer == optimizer and not one.calls and one.place is not None
    }
    return told if len(told) == len(ranks) else {}


def course_of(run: Run, rank: int, optimizer: int) -> RateCourse | None:
    """The rates of an optimizer; its number is as in `Schedule`."""
    told = [one for one in run.of(RateCourse, rank) if one.optimizer == optimizer]
    return told[-1] if told else None


# --- one scheduler ---


def _is_asked_twice(told: Schedule) -> bool:
    """Whether the user's code asks a part, and the whole, behind the same steps."""
    return told.twice >= _LEAST_TWICE


def _by_micro_batch(told: Schedule) -> Misstep | None:
    """As many calls as batches, and a course as long as there are optimizer steps."""
    if told.steps < _LEAST_STEPS or told.calls < _MANY_CALLS * told.steps:
        return None
    if told.length and not _is_near(told.length, told.steps):
        return None
    if not _ends(told):
        return None
    if not _is_near(told.end, told.steps):
        return None
    # A rate that is halved in the first half of the training may be on purpose.
    grave = (
        bool(told.length)
        or told.turned
        or told.lowest <= _NOTHING * told.highest
        or told.calls >= _SURELY * told.steps
    )
    return Misstep(
        ScheduleFault.MICRO_BATCHES, told, told.length or told.end, grave=grave
    )


def _by_batch(run: Run, told: Schedule, epochs: int) -> Misstep | None:
    """A call for each optimizer step, and a course as long as there are epochs.

    That it has their number may be chance; where it is made, it is called by a name.
    """
    if epochs < 2 or told.calls < _OFTEN * epochs or told.steps < _LEAST_STEPS:
        return None
    if told.calls > _MANY_CALLS * told.steps or told.steps > _MANY_CALLS * told.calls:
        return None
    part = part_in_epochs(run, told, epochs)
    whole = told.length == epochs
    # The rate of a whole course turns once; that of a part of it over and over.
    if part is not None and not (whole and told.end * _OFTEN <= told.calls):
        return Misstep(
            ScheduleFault.BATCHES, told, part[0], epochs, part[1], again=True
        )
    if told.length:
        named = "epoch" in _near_its_making(run, told).lower()
        named = named or (part is not None and part[1])
        if not whole or not (told.end > 0 or named):
            return None
        late = told.rises > 1 and told.end * _OFTEN > told.calls
        return Misstep(ScheduleFault.BATCHES, told, epochs, epochs, named, again=late)
    to_nothing = told.lowest <= _NOTHING * told.highest
    sick = _ends(told) and to_nothing and abs(told.end - epochs) <= 1
    return Misstep(ScheduleFault.BATCHES, told, epochs, epochs) if sick else None


def _by_epoch(run: Run, told: Schedule, epochs: int) -> Misstep | None:
    """A call for each epoch, and a course as long as there are optimizer steps."""
    if epochs < 2 or abs(told.calls - epochs) > 1 or told.steps < _LEAST_STEPS:
        return None
    if told.steps < _SELDOM * told.calls:
        return None
    lengths = [told.length] if told.length else told.numbers
    if told.steps not in lengths or _is_written(run, told, told.steps):
        return None
    return Misstep(ScheduleFault.EPOCHS, told, told.steps, epochs)


def _unsharded(run: Run, told: Schedule, epochs: int) -> Misstep | None:
    """A call for each step, and a course for the steps that one rank alone would make.

    A part of a longer training may be as long by chance, but for a source that divides
    the number of samples.
    """
    if epochs < 1 or told.steps < _LEAST_STEPS:
        return None
    if told.calls > _MANY_CALLS * told.steps or told.steps > _MANY_CALLS * told.calls:
        return None
    alone = steps_alone(run, told.rank, epochs)
    if alone is None:
        return None
    lengths = [told.length] if told.length else list(told.numbers)
    wanted = alone.wanted - (set() if told.length else alone.sizes)
    steps = alone.steps
    found = [one for one in lengths if one in wanted and one > _MANY_CALLS * steps]
    if not found or any(_is_near(one, steps) for one in lengths):
        return None
    grave = divides_samples(run) and not _is_written(run, told, found[0])
    return Misstep(ScheduleFault.UNSHARDED, told, found[0], epochs, grave, steps=steps)


def _too_early(told: Schedule, epochs: int) -> Misstep | None:
    """Each call comes before the step that it belongs to, also the first."""
    if told.early != 1 or told.scaled or not told.alike or told.second == told.begin:
        return None
    by_step = abs(told.calls - told.steps) <= 1
    if not by_step and (epochs < 2 or abs(told.calls - epochs) > 1):
        return None
    higher = max(told.begin, told.second)
    changed = abs(told.second - told.begin) / higher if higher > 0.0 else 0.0
    grave = 1 / told.calls >= _GRAVE_SHARE and changed >= _GRAVE_SHARE
    return Misstep(ScheduleFault.EARLY, told, epochs=epochs, grave=grave)


def _ends(told: Schedule) -> bool:
    """Whether a rate fell along a slope to its end, long before the last call."""
    return (
        told.falls >= _LEAST_FALLS
        and 0.0 <= told.lowest <= _LOW * told.highest
        and told.calls - told.end >= _LEFT * told.calls
    )


def _is_written(run: Run, told: Schedule, number: int) -> bool:
    """Whether a number stands where such a scheduler is made, and was not computed.

    Then it is as many as there are steps by chance, as round numbers are.
    """
    near = _near_its_making(run, told).replace("_", "")
    return re.search(rf"\b{number}\b", near) is not None


def _near_its_making(run: Run, told: Schedule) -> str:
    """The lines around those that make such a scheduler."""
    found: list[str] = []
    for made in run.of(Scheduled, told.rank):
        if made.kind == told.kind and made.place is not None:
            lines = run.sources.get(made.place.file, "").splitlines()
            first = max(0, made.place.line - 1 - _AROUND)
            found += lines[first : made.place.line + _AROUND]
    return "\n".join(found)


def _is_near(length: int, steps: int) -> bool:
    return abs(length - steps) <= max(2.0, _NEAR * steps)


def _epochs(run: Run, told: Schedule) -> int:
    """Passes over a loader that an optimizer made steps on, if all are of one loop."""
    trained: Sequence[LoaderPass] = [one for one in passes(run, told.rank) if one.steps]
    its = [one for one in trained if one.read.optimizer == told.optimizer + 1]
    trained = its or trained  # passes count optimizers from 1
    return len(trained) if len({one.key for one in trained}) == 1 else 0


# --- a picture ---

_WIDE = 48
_BLOCKS = "▁▂▃▄▅▆▇█"


def rates_told(run: Run, rank: int, optimizer: int) -> dict[str, object]:
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
