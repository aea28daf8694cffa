"""Records over how many batches each optimizer step accumulates gradients.

Nothing is written as long as each batch has its own optimizer step.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from distdoctor.model.observations.gradients import (
    CLEARED,
    LEFT,
    SKIPPED,
    STEPPED,
    Window,
)
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.accumulation.backward_passes import (
    NO_BATCH,
    Batch,
    latest,
    state_of,
)
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.optimizer_step import call_hooks, optimizers
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 2_000  # windows that differ from the one before


@dataclass(slots=True)
class _Open:
    """The batches whose gradients are accumulated since the last optimizer step.

    Attributes:
        reads: Numbers of the passes over a DataLoader that gave them.
        batches: How many of them came from each such pass.
        passes: Backward passes on batches of the last such pass.
    """

    reads: list[int]
    batches: list[int]
    passes: int = 0
    factor: float | None = None  # of the losses; 0.0: not known, or not one
    unclear: bool = False


class Windows:
    """Follows the accumulation windows of this process and records them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._open = _Open([], [])
        self._batch = (-1, 0)  # the last that backward ran on: its pass, its number
        self._mark = (-1, 0)  # likewise, of the window before
        self._turns = (-1, 0)  # a pass, and how often backward ran on what it gave
        self._is_behind = True  # each time, one more batch had been read
        self._accumulates = False
        self._held: tuple[Window, str] | None = None  # and how many more are like it
        self._reported = 0
        self._stepper: weakref.ref[Any] | None = None
        self._watched: weakref.ref[Tensor] | None = None  # a parameter
        self._seen = (0, 0)  # of its gradient, behind backward: where, which version
        self._scaled: tuple[weakref.ref[Tensor], float] | None = None
        self.attempts = 0  # times that a GradScaler was asked for a step

    # --- what happens ---

    def begin(self, loss: Tensor, _given: Any) -> None:
        """Called before a backward pass: assign it to the open window."""
        batch = latest()
        if batch == NO_BATCH:
            return
        if self._open.batches:
            self._look_between()
        this = self._open
        last = self._is_last_read_ahead(batch)
        if batch == self._batch and not last:
            if not this.reads:
                return
            this.passes += 1
        elif this.reads and this.reads[-1] == batch[0]:
            self._batch = batch
            this.passes += 1
            this.batches[-1] += 1
            self._accumulates = True
        else:
            self._settle()
            self._batch = batch
            this.passes = 1
            this.reads.append(batch[0])
            this.batches.append(1)
        if self._accumulates or self._read_ahead():
            factor = self._factor_of(loss)
            if this.factor is None or factor == this.factor:
                this.factor = factor
            else:
                this.factor = 0.0

    def passed(self, _reduced: bool, _local: bool) -> None:
        """Called after a backward pass: note the state of one watched gradient."""
        if not self._open.batches:
            return
        gradient = self._gradient()
        if gradient is None:
            self._watched = None
            for known in optimizers.every():
                for tensor in known.held():
                    if tensor.grad is not None:
                        self._watched = weakref.ref(tensor)
                        gradient = tensor.grad
                        break
                if gradient is not None:
                    break
        if gradient is not None:
            self._seen = state_of(gradient)

    def stepping(self, optimizer: Any, _known: Any, _closure: bool) -> None:
        """Called before an optimizer step, which closes the window."""
        self._stepper = weakref.ref(optimizer)
        if self._open.batches:
            self._close(STEPPED, call_site(4))

    def tried(self, _scaler: Any, _optimizer: Any) -> None:
        """Called after `GradScaler.step`, which may have skipped the step."""
        self.attempts += 1
        if self._open.batches:
            self._close(SKIPPED, call_site(2))

    def scaled(self, _scaler: Any, loss: Any, result: Any) -> None:
        """Called when a GradScaler scaled a loss: note the loss's own factor."""
        if not (self._accumulates or self._open.batches):
            return
        if isinstance(loss, Tensor) and isinstance(result, Tensor):
            self._scaled = weakref.ref(result), loss_terms.factor_of(loss, waits=False)

    def cleared(self, owner: Any, _given: Any) -> None:
        """Called after `zero_grad`: close the window if its gradients are gone."""
        if not self._open.batches:
            return
        stepper = None if self._stepper is None else self._stepper()
        gone = self._watched is not None and self._gradient() is None
        if gone or (stepper is not None and owner is stepper):
            self._close(CLEARED, call_site(2))

    def flush(self) -> None:
        """Called at the end: record the window that no optimizer step used."""
        if self._open.batches:
            self._close(LEFT, "")
        self._tell()

    # --- a window ---

    def _given(self) -> int:
        """Batches that a pass has given since the window before."""
        number, given = self._batch
        return given - self._mark[1] if number == self._mark[0] else given

    def _is_last_read_ahead(self, batch: Batch) -> bool:
        """Whether backward runs on a last batch that was read before the last but one.

        A loop that reads one batch ahead is one behind at each backward, but for the
        last, at which the loader has ended.
        """
        number, given = batch
        if number != self._turns[0]:
            self._turns, self._is_behind = (number, 0), True
        turn = self._turns[1] + 1
        self._turns = number, turn
        reading = SAMPLES.latest
        last = self._is_behind and turn > 1 and turn == given
        self._is_behind &= given == turn + 1
        return last and reading is not None and reading.over

    def _read_ahead(self) -> bool:
        """Whether more batches were read than backward was seen to turn to."""
        this = self._open
        return this.passes > this.batches[-1] and self._given() > this.batches[-1]

    def _settle(self) -> None:
        """No further batch of this pass over a loader belongs to the window."""
        this = self._open
        if this.batches and self._read_ahead():
            if self._given() == this.passes:  # they were read first, all of them
                this.batches[-1] = this.passes
                self._accumulates = True
            else:
                this.unclear = True
        self._mark = self._batch

    def _gradient(self) -> Tensor | None:
        tensor = None if self._watched is None else self._watched()
        return None if tensor is None else tensor.grad

    def _look_between(self) -> None:
        """Backward runs once more: see what became of the gradients meanwhile."""
        gradient = self._gradient()
        if self._watched is None:
            self._open.unclear = True
        elif gradient is None:
            self._close(CLEARED, call_site(5))
        elif state_of(gradient) != self._seen:
            self._open.unclear = True

    def _factor_of(self, loss: Tensor) -> float:
        if self._scaled is not None and self._scaled[0]() is loss:
            return self._scaled[1]
        return loss_terms.factor_of(loss, waits=False)

    def _close(self, end: str, site: str) -> None:
        self._settle()
        this, self._open = self._open, _Open([], [])
        if not self._accumulates:
            return
        changes = -1
        gradient = self._gradient()
        if end == STEPPED and gradient is not None:
            where, version = state_of(gradient)
            changes = version - self._seen[1] if where == self._seen[0] else -1
        window = Window(
            reads=tuple(this.reads),
            batches=tuple(this.batches),
            end=end,
            factor=this.factor or 0.0,
            changes=changes,
            unclear=this.unclear,
        )
        if self._held is not None:
            held, where_held = self._held
            if where_held == site and replace(window, more=held.more) == held:
                self._held = replace(held, more=held.more + 1), site
                return
        self._tell()
        self._held = window, site

    def _tell(self) -> None:
        held, self._held = self._held, None
        if held is not None and self._reported < _MOST:
            self._reported += 1
            RECORDER.observe(*held)


WINDOWS = Windows()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    call_hooks.tell(CALL_HOOKS.cleared, WINDOWS.cleared)
    call_hooks.tell(CALL_HOOKS.tried, WINDOWS.tried)
    call_hooks.tell(CALL_HOOKS.scaled, WINDOWS.scaled)


PROBE = Probe(install=install, flush=WINDOWS.flush, reset=WINDOWS.reset)
