"""Sees how learning rates rise, and what comes behind the rise."""

from __future__ import annotations

import ast
import functools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.optim import lr_scheduler

from distdoctor.model.observed.settings import Climbed, RateSet
from distdoctor.probes.acts import ACTS
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.sites import call_site, is_users, text_of

_RISES = 3  # changes upwards in a row that are a warm-up

_BEFORE, _AFTER = 6, 4  # values that are told: up to the highest, and behind it

_MOST_CLIMBS = 16  # of one optimizer; a schedule with restarts makes many

_MOST_OPTIMIZERS = 64

_MOST_CALLS = 3  # of a scheduler whose lines are asked for; the first is its making's

_MOST_LINES = 3  # that set a rate


class _Course:
    """The learning rate of one optimizer's first group; its changes only."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.step = self.climbs = 0
        self.rate: Any = None
        self.site = ""  # of the step, when the rate was seen to rise
        self.values: list[tuple[int, float]] = []  # and at which step each came
        self.rises = 0  # of the changes in `values`, up to the highest
        self.falling = False

    def forget(self) -> None:
        """What comes is not to be compared with what was."""
        self.values, self.rises, self.falling = [], 0, False

    def changed(self, rate: float) -> Climbed | None:
        """The rate has another value; a climb, if all of it is known."""
        rises = bool(self.values) and rate > self.values[-1][1]
        told = None
        if self.values and not rises:
            self.falling = self.rises >= _RISES
        elif self.falling:  # it rises again
            told = self.climbed()
        if not rises and not self.falling:
            self.forget()
        self.values.append((self.step, rate))
        self.rises += rises
        top = self.values.index(max(self.values, key=lambda value: value[1]))
        if self.falling and len(self.values) - 1 - top >= _AFTER:
            return self.climbed()
        if not self.falling:
            del self.values[:-_BEFORE]
        return told

    def climbed(self) -> Climbed | None:
        """What is known of a climb; the next one begins with its last value."""
        values, rises = self.values, self.rises
        self.values, self.rises, self.falling = values[-1:], 0, False
        if rises < _RISES or self.climbs >= _MOST_CLIMBS:
            return None
        self.climbs += 1
        return Climbed(
            rank=-1,
            optimizer=self.number,
            steps=tuple(step for step, _ in values),
            rates=tuple(rate for _, rate in values),
            until=self.step,
        )


class Rates:
    """Learning rates of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """This process plays in another run from now on."""
        self._courses: weakref.WeakKeyDictionary[Any, _Course]
        self._courses = weakref.WeakKeyDictionary()
        self._count = 0
        self._setters: weakref.WeakKeyDictionary[Any, tuple[str, Any]]
        self._setters = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        course = self._courses.get(optimizer)
        if course is None:
            if self._count >= _MOST_OPTIMIZERS:
                return
            course = self._courses[optimizer] = _Course(self._count)
            self._count += 1
        course.step += 1
        rate = optimizer.param_groups[0].get("lr")
        if rate is not course.rate:
            course.rate = rate
            self._changed(optimizer, course, rate)

    @harmless
    def _changed(self, optimizer: Any, course: _Course, rate: Any) -> None:
        if hasattr(rate, "is_cuda"):  # a tensor is changed in place
            return
        if course.values and course.values[-1][1] == rate:
            return
        told = course.changed(float(rate))
        if course.rises == _RISES and not course.falling and not course.site:
            course.site = call_site(4)
            self._tell_setters(optimizer, course)
        if told is not None:
            RECORDER.observe(told, course.site)

    def shortened(self) -> None:
        """Loaders are shorter from now on, and rates computed by their length jump."""
        for course in self._courses.values():
            course.forget()

    def flush(self) -> None:
        """The process ends: tell of climbs behind which little came."""
        for course in self._courses.values():
            told = course.climbed()
            if told is not None:
                RECORDER.observe(told, course.site)

    # --- who sets it ---

    def scheduled(self, scheduler: Any) -> None:
        """A scheduler was asked for its next rate."""
        calls = self._calls.get(scheduler, 0)
        optimizer = getattr(scheduler, "optimizer", None)
        if calls <= _MOST_CALLS and optimizer is not None:
            self._calls[scheduler] = calls + 1
            self._setters[optimizer] = call_site(2), weakref.ref(scheduler)
        for tell in ACTS.scheduled:
            tell(optimizer)

    def _tell_setters(self, optimizer: Any, course: _Course) -> None:
        site, scheduler = self._setters.get(optimizer, ("", None))
        if scheduler is not None:
            told = [*_formulas(scheduler()), site]
        else:
            told = list(_assigning(course.site))
        for line in told[:_MOST_LINES]:
            if line:
                told_of = RateSet(rank=-1, optimizer=course.number)
                RECORDER.observe(told_of, line)


RATES = Rates()


def watch() -> None:
    """When the process has become a rank: who sets rates from then on."""
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and "step" in vars(kind):
            _telling(kind)
    RECORDER.on_turn.append(RATES.forget)
    RECORDER.on_end.append(harmless(RATES.flush))


def _telling(kind: Any) -> None:
    made: Callable[..., Any] = kind.step
    scheduled = harmless(RATES.scheduled)

    @functools.wraps(made)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled(self)
        return made(self, *args, **kwargs)

    kind.step = step


def _formulas(scheduler: Any) -> Iterator[str]:
    """Where the user's functions begin that a scheduler computes rates by."""
    for function in getattr(scheduler, "lr_lambdas", ()):
        code = getattr(function, "__code__", None)
        if code is not None and is_users(code.co_filename):
            yield text_of(code.co_filename, code.co_firstlineno, code.co_qualname)


def _assigning(site: str) -> Iterator[str]:
    """Lines of the file that makes the step which put a rate into a group."""
    file, _, _ = site.partition("\n")
    if not file.endswith(".py"):
        return
    tree = ast.parse(Path(file).read_bytes())
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant) and key.value == "lr":
                yield f"{file}\n{node.lineno}\n"
