"""Records how often schedulers are stepped, and which learning rates they set."""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch.optim import lr_scheduler

from distdoctor.model.observations.learning_rate import Schedule
from distdoctor.probes.accumulation.accumulation_windows import WINDOWS
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.learning_rate.rising_rates import RATES
from distdoctor.probes.patching import call_as, traced_as
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_SCHEDULERS = 64

_MOST_CALLS = 2  # whose lines are asked for

_MOST_NUMBERS = 64

_DEEPEST = 3  # functions inside of functions that numbers are looked for in

_LEAST_FALLS = 4  # changes downwards in a row that are a slope, and not a drop

_SMOOTH = 0.5  # share of the height of a fall that a rise behind it may be

_ASKING = (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)
"""Schedulers that ask their parts themselves."""

_SINGLE = ("total_steps", "T_max", "total_iters")
"""Attributes of torch's schedulers that hold their length.

Source: torch 2.13, optim/lr_scheduler.py: OneCycleLR, CosineAnnealingLR, PolynomialLR
and LinearLR.
"""


class _Plan:
    """The calls and learning rates of one scheduler."""

    def __init__(self, number: int, kind: str, optimizer: Any) -> None:
        self.number, self.kind = number, kind
        self.optimizer = weakref.ref(optimizer)
        self.course = RATES.course_of(optimizer)
        self.steps_before = 0 if self.course is None else self.course.step
        self.calls = self.early = 0
        self.sites: list[str] = []
        self.given_at = ""  # the first call that named a metric, or the epoch
        self.scaled = False
        self.length = 0
        self.numbers: tuple[int, ...] = ()
        self.rate: Any = _rate_of(optimizer)
        self.begin = self.second = self.highest = self.lowest = self.rate
        self.falls = self.end = 0
        self.turned = self.over = False
        self.parts: tuple[int, ...] = ()
        self.kinds: tuple[str, ...] = ()
        self.outer: _Plan | None = None
        self.inner: list[_Plan] = []
        self.before = math.nan  # the rate when it was about to be asked last
        self.asked_at = self.changed_at = self.twice_at = -1  # steps of the optimizer
        self.twice = 0
        self.rises, self.down = 0, False  # whether the last change was a fall
        self.reported: Schedule | None = None

    def paired(self, rate: float) -> None:
        """Called after a scheduler's step: see if its parts were stepped as well.

        A scheduler that is a part of several counts as one of the last.
        """
        self.asked_at = 0 if self.course is None else self.course.step
        if abs(rate - self.before) > 0.0:
            self.changed_at = self.asked_at
        for part in (self, *self.inner):
            whole = part.outer
            if whole is None or part.changed_at != whole.asked_at:
                continue
            if part.changed_at > part.twice_at:
                part.twice_at = part.changed_at
                part.twice += 1

    def changed(self, rate: float) -> None:
        """Called when a step of the scheduler changed the learning rate."""
        before, self.rate = self.rate, rate
        self.rises += self.down and rate > before
        self.down = rate < before
        if self.over:
            return
        if rate < before:
            self.falls += 1
            self.lowest, self.end = rate, self.calls
        elif self.falls < _LEAST_FALLS:
            self.falls, self.end = 0, 0
            self.highest = self.lowest = rate
        else:
            self.over = True
            self.turned = rate - before <= _SMOOTH * (self.highest - before)
            if not self.turned:
                self.end = 0


class Schedules:
    """Follows the schedulers of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._plans: weakref.WeakKeyDictionary[Any, _Plan]
        self._plans = weakref.WeakKeyDictionary()
        self._kept: list[_Plan] = []
        self.depth = 0  # of schedulers that ask each other, or are being made

    def known(self, scheduler: Any) -> None:
        """Called when a scheduler was made, or is about to be stepped."""
        plan = self._plan_of(scheduler)
        if plan is not None:
            plan.before = _rate_of(plan.optimizer())

    def stepped(self, optimizer: Any) -> None:
        """Called at the first step of an optimizer."""
        for plan in self._kept:
            if plan.course is None and plan.optimizer() is optimizer:
                plan.course = RATES.course_of(optimizer)

    def asked(self, scheduler: Any, given: bool) -> None:
        """Called when the user's code has called a scheduler's `step`.

        Args:
            scheduler: The scheduler.
            given: Whether an epoch or a metric was passed.
        """
        plan = self._plan_of(scheduler)
        if plan is None:
            return
        if given:
            plan.given_at = plan.given_at or call_site(2)
            return
        plan.calls += 1
        rate = _rate_of(plan.optimizer())
        if plan.calls <= _MOST_CALLS:
            plan.sites.append(call_site(2))
            if plan.calls == 1:
                self._first(plan, scheduler, rate)
        if not RATES.any_steps:
            plan.early += 1
        plan.paired(rate)
        if rate != plan.rate and not math.isnan(rate):
            plan.changed(rate)

    def _first(self, plan: _Plan, scheduler: Any, rate: float) -> None:
        plan.second, plan.scaled = rate, WINDOWS.attempts > 0
        plan.length = _length_of(scheduler)
        plan.numbers = tuple(sorted(set(_numbers_of(scheduler))))[-_MOST_NUMBERS:]
        parts = tuple(_parts_of(scheduler))[:_MOST_NUMBERS]
        plan.parts = tuple(length for length, _ in parts)
        plan.kinds = tuple(kind for _, kind in parts)

    def _plan_of(self, scheduler: Any) -> _Plan | None:
        plan = self._plans.get(scheduler)
        optimizer = getattr(scheduler, "optimizer", None)
        if plan is None and optimizer is not None:
            if len(self._kept) >= _MOST_SCHEDULERS:
                return None
            plan = _Plan(len(self._kept), type(scheduler).__name__, optimizer)
            self._plans[scheduler] = plan
            parts = map(self._plans.get, getattr(scheduler, "_schedulers", ()))
            # One that asks others is first seen when it is asked, and they earlier.
            known = [part for part in parts if part is not None]
            before = [part.steps_before for part in known]
            plan.steps_before = min([plan.steps_before, *before])
            if isinstance(scheduler, _ASKING):
                plan.inner = known
                for part in known:
                    part.outer = plan
            self._kept.append(plan)  # the user may let go of it before the end
        return plan

    def flush(self) -> None:
        """Called at the end: record all schedulers."""
        for plan in self._kept:
            course = plan.course
            rates = (plan.begin, plan.second, plan.highest, plan.lowest)
            if not all(map(math.isfinite, rates)):
                continue
            observation = Schedule(
                scheduler=plan.number,
                optimizer=-1 if course is None else course.number,
                kind=plan.kind,
                length=plan.length,
                numbers=plan.numbers,
                calls=plan.calls,
                steps=0 if course is None else course.step - plan.steps_before,
                early=plan.early,
                scaled=plan.scaled,
                alike=len(set(plan.sites)) == 1 and len(plan.sites) == _MOST_CALLS,
                begin=plan.begin,
                second=plan.second,
                highest=plan.highest,
                lowest=plan.lowest,
                falls=plan.falls,
                end=plan.end,
                turned=plan.turned,
                rises=plan.rises,
                parts=plan.parts,
                kinds=plan.kinds,
                outer=-1 if plan.outer is None else plan.outer.number,
                twice=plan.twice,
            )
            if observation != plan.reported:
                plan.reported = observation
                RECORDER.observe(
                    observation, plan.sites[0] if plan.sites else plan.given_at
                )


SCHEDULES = Schedules()


def install() -> None:
    """Install the probe, once the process has become a rank."""
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and "step" in vars(kind):
            _telling(kind)
    base: Any = lr_scheduler.LRScheduler
    made, known = base._initial_step, harmless(SCHEDULES.known)

    @functools.wraps(made)
    def initial_step(self: Any) -> None:
        SCHEDULES.depth += 1
        try:
            made(self)
        finally:
            SCHEDULES.depth -= 1
        if not SCHEDULES.depth:
            known(self)

    base._initial_step = initial_step
    RATES.on_first.append(harmless(SCHEDULES.stepped))


def _telling(kind: Any) -> None:
    made: Callable[..., Any] = kind.step
    scheduled = harmless(RATES.scheduled)
    known, asked = harmless(SCHEDULES.known), harmless(SCHEDULES.asked)

    @functools.wraps(made)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return made(self, *args, **kwargs)
        scheduled(self)
        if not SCHEDULES.depth:
            known(self)
        SCHEDULES.depth += 1
        try:
            result = call_as(sys._getframe(1), made, (self, *args), kwargs)
        finally:
            SCHEDULES.depth -= 1
        if not SCHEDULES.depth:
            asked(self, bool(args or kwargs))
        return result

    traced_as(made, step)
    kind.step = step


def _rate_of(optimizer: Any) -> float:
    """Of the first group; not a number if it is kept in a tensor."""
    rate = optimizer.param_groups[0].get("lr") if optimizer is not None else None
    return float(rate) if isinstance(rate, int | float) else math.nan


# --- how long a schedule is ---


def _length_of(scheduler: Any) -> int:
    """Calls after which the course of one of torch's schedulers ends; 0: not known."""
    parts = getattr(scheduler, "_schedulers", None)
    if parts:
        milestones = getattr(scheduler, "_milestones", None)
        lengths = [_length_of(part) for part in parts]
        if milestones is None:  # a ChainedScheduler asks all of them at once
            return max(lengths)
        return milestones[-1] + lengths[-1] if milestones and lengths[-1] else 0
    if not type(scheduler).__module__.startswith("torch."):
        return 0
    if getattr(scheduler, "T_mult", 0) == 1:  # CosineAnnealingWarmRestarts
        return int(getattr(scheduler, "T_0", 0))
    for name in _SINGLE:
        length = getattr(scheduler, name, None)
        if isinstance(length, int) and not isinstance(length, bool):
            rises = getattr(scheduler, "end_factor", 0.0) >= getattr(
                scheduler, "start_factor", 1.0
            )
            return 0 if name == "total_iters" and rises else length
    return 0


def _parts_of(scheduler: Any) -> Iterator[tuple[int, str]]:
    """Lengths and classes of those schedulers inside of one, or itself, that fall."""
    parts = getattr(scheduler, "_schedulers", None)
    if parts:
        for part in parts:
            yield from _parts_of(part)
        return
    ours = type(scheduler).__module__.startswith("torch.")
    length = getattr(scheduler, "T_0", 0) if ours else 0
    length = length or _length_of(scheduler)
    if isinstance(length, int) and length > 0:
        yield length, type(scheduler).__name__


def _numbers_of(scheduler: Any) -> Iterator[int]:
    """Whole numbers that the user's part of a scheduler has to do with."""
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _numbers_of(part)
    for function in getattr(scheduler, "lr_lambdas", ()):
        yield from _numbers_in(function, 0)
    if not type(scheduler).__module__.startswith("torch."):
        yield from _whole(vars(scheduler))


def _numbers_in(thing: Any, depth: int) -> Iterator[int]:
    if isinstance(thing, int) and not isinstance(thing, bool):
        yield thing
    if depth >= _DEEPEST or isinstance(thing, type | int | float | str):
        return
    if isinstance(thing, functools.partial):
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            yield from _numbers_in(part, depth + 1)
        return
    code = getattr(thing, "__code__", None)
    if not isinstance(code, CodeType):
        # Of what a function merely has at hand, such as all arguments of the program,
        # most numbers have to do with something else.
        if callable(thing):
            yield from _whole(getattr(thing, "__dict__", {}))
        return
    yield from _whole(getattr(getattr(thing, "__self__", None), "__dict__", {}))
    held = [cell.cell_contents for cell in thing.__closure__ or () if _is_full(cell)]
    held += thing.__defaults__ or ()
    held += (thing.__kwdefaults__ or {}).values()
    names = thing.__globals__
    held += [names[name] for name in code.co_names if name in names]
    for part in held:
        yield from _numbers_in(part, depth + 1)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # its variable has no value yet
        return False


def _whole(attributes: Mapping[str, Any]) -> Iterator[int]:
    for name, value in list(attributes.items())[:_MOST_NUMBERS]:
        if name.startswith("_") or name == "last_epoch" or isinstance(value, bool):
            continue
        if isinstance(value, int):
            yield value


PROBE = Probe(install=install, flush=SCHEDULES.flush, reset=SCHEDULES.reset)
