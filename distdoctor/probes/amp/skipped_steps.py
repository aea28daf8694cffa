"""Records after which backward passes optimizers step, and which steps are skipped.

A GradScaler that skips a step calls no step hook of the optimizer. Steps at regular
intervals are recorded together, when the regularity ends.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from distdoctor.model.observations.amp import Overflow, Stride
from distdoctor.probes.amp import non_finite_weights
from distdoctor.probes.amp.grad_scalers import scale_of
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.optimizer_step import call_hooks, optimizers
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.optimizer_step.true_steps import before_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 2_000
"""Notes of each sort; windows by their tokens make a note of nearly each step."""


class _Course:
    """The regular sequence of steps of one optimizer that is not recorded yet.

    Attributes:
        first: Round of its first step; 0: there is none.
        last: Round of the last step.
        made: Steps of the optimizer in all.
    """

    __slots__ = ("count", "every", "first", "kind", "last", "made", "number", "site")

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind, self.site = number, kind, ""
        self.first = self.last = self.every = self.count = self.made = 0


class Rounds:
    """Counts rounds, i.e. backward passes whose gradients are averaged, and steps."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self.now = 0
        self.stepped = self._before = 0  # steps of any optimizer
        self._courses: WeakKeyDictionary[Any, _Course] = WeakKeyDictionary()
        self._all: list[_Course] = []  # also of optimizers that are gone
        self._strides = self._overflows = 0
        self._pending: tuple[Overflow, str] | None = None

    # --- what happens ---

    def begun(self, loss: Tensor, _given: Any) -> None:
        """Called before a backward pass, whose loss may be non-finite."""
        if non_finite_weights.backward(loss):
            self.infinite(call_site(4))

    def infinite(self, site: str) -> None:
        """Note that the loss of the coming backward pass is non-finite."""
        self._settle()
        self._pending = Overflow(round=self.now + 1, loss=True), site

    def passed(self, _reduced: bool, local: bool) -> None:
        """Called after a backward pass: a new round, unless it was `local`."""
        self.now += not local

    def count(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called before each step of any optimizer, known to the probes or not."""
        self.stepped += 1

    def stepping(
        self, optimizer: Any, known: optimizers.Optimizer, _closure: bool
    ) -> None:
        """Called before an optimizer step: note in which round it is made."""
        course = self._courses.get(optimizer)
        if course is None:
            course = _Course(known.number, type(optimizer).__name__)
            self._courses[optimizer] = course
            if len(self._all) < _MOST:
                self._all.append(course)
        if self._pending is not None:
            if self._pending[0].round >= self.now:
                self._pending = None
            else:
                self._settle()
        now, course.made = self.now, course.made + 1
        if course.count and now == course.last:
            return  # a second step with the gradients of one round
        if course.count == 1:
            course.every = now - course.last
        if not course.count or now - course.last != course.every:
            self._tell(course)
            course.first, course.count, course.every = now, 1, 1
            course.site = call_site(4)
        else:
            course.count += 1
        course.last = now

    def trying(self, _scaler: Any, _optimizer: Any) -> None:
        """Called before `GradScaler.step`."""
        self._before = self.stepped

    def tried(self, scaler: Any, optimizer: Any) -> None:
        """Called after `GradScaler.step`: record it if the step was skipped."""
        if not scaler.is_enabled() or (known := optimizers.of(optimizer)) is None:
            return
        if self.stepped != self._before and not _left_out_inside(scaler, optimizer):
            return
        if self._overflows >= _MOST:
            return
        self._overflows += 1
        self._pending = None
        RECORDER.observe(
            Overflow(
                optimizer=known.number,
                round=self.now,
                scale=scale_of(scaler),
            ),
            call_site(3),
        )

    def flush(self) -> None:
        """Called at the end of the process: record what is not yet."""
        self._settle()
        for course in self._all:
            self._tell(course)

    # --- notes ---

    def _settle(self) -> None:
        """Nobody stepped after that loss."""
        pending, self._pending = self._pending, None
        if pending is not None and self._overflows < _MOST:
            self._overflows += 1
            RECORDER.observe(*pending)

    def _tell(self, course: _Course) -> None:
        if not course.count or self._strides >= _MOST:
            return
        self._strides += 1
        observation = Stride(
            optimizer=course.number,
            kind=course.kind,
            first=course.first,
            every=course.every,
            count=course.count,
            until=self.now,
        )
        course.count = 0
        RECORDER.observe(observation, course.site)


def _left_out_inside(scaler: Any, optimizer: Any) -> bool:
    """Whether an optimizer that looks for Inf itself has left its step out.

    Those of torch with `fused` do. On a GPU the answer would have to be waited for.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    found = scaler._found_inf_per_device(optimizer).values()
    return any(
        isinstance(one, Tensor) and one.is_cpu and one.item() > 0 for one in found
    )


ROUNDS = Rounds()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    call_hooks.tell(CALL_HOOKS.trying, ROUNDS.trying)
    call_hooks.tell(CALL_HOOKS.tried, ROUNDS.tried)
    before_steps(ROUNDS.count)


PROBE = Probe(install=install, flush=ROUNDS.flush, reset=ROUNDS.reset)
