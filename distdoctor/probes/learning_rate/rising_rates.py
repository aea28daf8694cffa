"""Records how learning rates rise, as in a warmup, and what follows."""

from __future__ import annotations

import ast
import functools
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distdoctor.journal.packed_texts import parted
from distdoctor.model.observations.learning_rate import (
    RateCourse,
    RateRise,
    RateSet,
)
from distdoctor.model.source_text import syntax_tree
from distdoctor.probes import registry
from distdoctor.probes.call_sites import call_site, is_users, text_of
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_RISES = 3  # changes upwards in a row that are a warm-up

_BEFORE, _AFTER = 6, 4  # values that are told: up to the highest, and behind it

_MOST_CLIMBS = 16  # of one optimizer; a schedule with restarts makes many

_MOST_OPTIMIZERS = 64

_MOST_CALLS = 3  # of a scheduler whose lines are asked for; the first is its making's

_MOST_LINES = 3  # that set a rate

_MOST_VALUES = 128  # of a course; then every other is forgotten


class _Course:
    """The course of one optimizer's learning rate (first parameter group)."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.step = self.climbs = 0
        self.rate: Any = None
        self.site = ""  # of the step, when the rate was seen to rise
        self.values: list[tuple[int, float]] = []  # and at which step each came
        self.rises = 0  # of the changes in `values`, up to the highest
        self.falling = False
        self.sampled: list[float] = []  # every `stride` steps, from the first on
        self.stride, self.next = 1, 1  # the step whose rate is kept next
        self.highest = 0.0
        self.reported: RateCourse | None = None

    def sample(self) -> None:
        """Keep the learning rate of this step."""
        self.sampled.append(float(self.rate))
        if len(self.sampled) == _MOST_VALUES:
            del self.sampled[1::2]
            self.stride *= 2
        self.next = 1 + len(self.sampled) * self.stride

    def unreported_course(self) -> RateCourse | None:
        """The whole course so far; None if nothing changed since the last call."""
        rate = self.rate
        if not isinstance(rate, int | float):
            return None
        if not self.sampled or not math.isfinite(sum(self.sampled) + rate):
            return None
        course = RateCourse(
            optimizer=self.number,
            steps=self.step,
            stride=self.stride,
            rates=tuple(self.sampled),
            highest=self.highest,
            last=float(rate),
        )
        if course == self.reported:
            return None
        self.reported = course
        return course

    def reset(self) -> None:
        """Forget earlier rates: later ones are not comparable with them."""
        self.values, self.rises, self.falling = [], 0, False

    def changed(self, rate: float) -> RateRise | None:
        """Called when the rate changed; returns a rise that is now complete."""
        rises = bool(self.values) and rate > self.values[-1][1]
        completed = None
        if self.values and not rises:
            self.falling = self.rises >= _RISES
        elif self.falling:  # it rises again
            completed = self.rise()
        if not rises and not self.falling:
            self.reset()
        self.values.append((self.step, rate))
        self.rises += rises
        top = self.values.index(max(self.values, key=lambda value: value[1]))
        if self.falling and len(self.values) - 1 - top >= _AFTER:
            return self.rise()
        if not self.falling:
            del self.values[:-_BEFORE]
        return completed

    def rise(self) -> RateRise | None:
        """The present rise; the next one starts with its last value."""
        values, rises = self.values, self.rises
        self.values, self.rises, self.falling = values[-1:], 0, False
        if rises < _RISES or self.climbs >= _MOST_CLIMBS:
            return None
        self.climbs += 1
        return RateRise(
            optimizer=self.number,
            steps=tuple(step for step, _ in values),
            rates=tuple(rate for _, rate in values),
            until=self.step,
        )


class Rates:
    """Follows the learning rates of all optimizers of this process."""

    def __init__(self) -> None:
        self.on_first: list[Callable[[Any], object]] = []  # told of each optimizer
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._courses: weakref.WeakKeyDictionary[Any, _Course]
        self._courses = weakref.WeakKeyDictionary()
        self._kept: list[_Course] = []  # of optimizers that may be gone at the end
        self._setters: weakref.WeakKeyDictionary[Any, tuple[str, Any]]
        self._setters = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def stepped(self, optimizer: Any) -> None:
        """Called after an optimizer step."""
        course = self._courses.get(optimizer)
        if course is None:
            if len(self._kept) >= _MOST_OPTIMIZERS:
                return
            course = self._courses[optimizer] = _Course(len(self._kept))
            self._kept.append(course)
            for tell in self.on_first:
                tell(optimizer)
        course.step += 1
        rate = optimizer.param_groups[0].get("lr")
        if rate is not course.rate:
            course.rate = rate
            self._changed(optimizer, course, rate)
        if course.step == course.next:
            self._sample(course)

    @harmless
    def _sample(self, course: _Course) -> None:
        if isinstance(course.rate, int | float):
            course.sample()
        else:
            course.next = 0  # never again: a tensor is changed in place

    @harmless
    def _changed(self, optimizer: Any, course: _Course, rate: Any) -> None:
        if hasattr(rate, "is_cuda"):  # a tensor is changed in place
            return
        if course.values and course.values[-1][1] == rate:
            return
        course.highest = max(course.highest, float(rate))
        rise = course.changed(float(rate))
        if course.rises == _RISES and not course.falling and not course.site:
            course.site = call_site(4)
            self._tell_setters(optimizer, course)
        if rise is not None:
            RECORDER.observe(rise, course.site)

    def shortened(self) -> None:
        """Called when epochs are shortened, so that rates computed by length jump."""
        for course in self._courses.values():
            course.reset()

    def flush(self) -> None:
        """Called at the end: record rises that are not complete, and all courses."""
        for course in self._kept:
            rise = course.rise()
            if rise is not None:
                RECORDER.observe(rise, course.site)
            whole = course.unreported_course()
            if whole is not None:
                RECORDER.observe(whole)

    def course_of(self, optimizer: Any) -> _Course | None:
        """The course of an optimizer's rate; None if it made no step."""
        return self._courses.get(optimizer)

    @property
    def any_steps(self) -> bool:
        """Whether any optimizer made a step."""
        return bool(self._kept)

    # --- who sets it ---

    def scheduled(self, scheduler: Any) -> None:
        """Called when a scheduler's `step` was called."""
        calls = self._calls.get(scheduler, 0)
        optimizer = getattr(scheduler, "optimizer", None)
        if calls <= _MOST_CALLS and optimizer is not None:
            self._calls[scheduler] = calls + 1
            self._setters[optimizer] = call_site(2), weakref.ref(scheduler)
        for tell in CALL_HOOKS.scheduled:
            tell(optimizer)

    def _tell_setters(self, optimizer: Any, course: _Course) -> None:
        site, scheduler = self._setters.get(optimizer, ("", None))
        if scheduler is not None:
            lines = [*_formulas(scheduler()), site]
        else:
            lines = list(_assigning(course.site))
        for line in lines[:_MOST_LINES]:
            if line:
                observation = RateSet(optimizer=course.number)
                RECORDER.observe(observation, line)


RATES = Rates()


def _flush() -> None:
    """Of a rank that is played alone only a jump is told, at once."""
    if not registry.is_simulated():
        RATES.flush()


def _formulas(scheduler: Any) -> Iterator[str]:
    """Where the user's functions begin that a scheduler computes rates by."""
    functions = [*getattr(scheduler, "lr_lambdas", ())]
    functions.append(getattr(type(scheduler), "get_lr", None))  # of a user's subclass
    for function in functions:
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(function, "__code__", None)
        if code is None:  # an object that is called
            code = getattr(vars(type(function)).get("__call__"), "__code__", None)
        if code is not None and is_users(code.co_filename):
            yield text_of(code.co_filename, code.co_firstlineno, code.co_qualname)


def _assigning(site: str) -> Iterator[str]:
    """Lines of the file that makes the step which put a rate into a group."""
    file = parted(site)[0]
    if not file.endswith(".py"):
        return
    tree = syntax_tree(Path(file).read_bytes())
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant) and key.value == "lr":
                yield f"{file}\n{node.lineno}\n"


PROBE = Probe(stepped=RATES.stepped, flush=_flush, reset=RATES.reset)
