"""Calls registered probes around backward passes and optimizer steps.

What all want to know of a moment is asked for once. A probe that fails takes the event
from no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.fingerprints import sampled
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.harmless import harmless, tell_each
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.optimizer_step import backward_hooks, optimizers
from distdoctor.probes.optimizer_step.true_steps import after_steps, before_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import steps_have_values
from distdoctor.probes.recorder import RECORDER

Listener = Callable[..., Any]


class StepHooks:
    """The functions that probes register for backward passes and optimizer steps.

    They are called in order, each guarded, so none needs to be `harmless`.

    Attributes:
        begun: Before a backward pass from a loss of one element. They get the loss, and
            the gradient that was given for it or None.
        passed: After a backward pass. They get whether a wrapper has averaged something
            meanwhile, and whether the pass was not to be averaged.
        stepping: Before an optimizer step. They get the optimizer, what is
            known of it, with this step among its `steps`, and whether there is a
            closure, in which backward may run.
        looking: Before a step whose gradients were sampled, and no closure may change
            them. They get what is known of the optimizer.
        stepped: After an optimizer step. They get the optimizer, and what is known.
    """

    def __init__(self) -> None:
        self.begun: list[Listener] = []
        self.passed: list[Listener] = []
        self.stepping: list[Listener] = []
        self.looking: list[Listener] = []
        self.stepped: list[Listener] = []
        self._reduced = 0  # `EXCHANGES.reduced` when the last pass began

    # --- backward ---

    @harmless
    def begin(self, args: tuple[Any, ...]) -> None:
        """Called before autograd's engine runs."""
        METRICS.train()
        self._reduced = EXCHANGES.reduced
        if RECORDER.writer is None or not args or len(args[0]) != 1:
            return
        loss = args[0][0]
        if isinstance(loss, Tensor) and loss.numel() == 1:
            given = args[1][0] if len(args) > 1 and args[1] else None
            tell_each(self.begun, loss, given)

    @harmless
    def end(self) -> None:
        """Called after autograd's engine has returned."""
        if RECORDER.writer is not None:
            reduced = EXCHANGES.reduced > self._reduced
            local = any(map(_is_local, optimizers.wrappers()))
            tell_each(self.passed, reduced, local)

    # --- steps ---

    @harmless
    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called before an optimizer step."""
        known = optimizers.of(optimizer)
        if RECORDER.writer is None or known is None or not _is_real(optimizer):
            return
        known.steps += 1
        # The first is the optimizer itself; Horovod's passes on that there is none.
        given = (*args[1:], *kwargs.values())
        closure = any(one is not None for one in given)
        tell_each(self.stepping, optimizer, known, closure)

    @harmless
    def after(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after an optimizer step."""
        known = optimizers.of(optimizer)
        if RECORDER.writer is not None and known and _is_real(optimizer):
            tell_each(self.stepped, optimizer, known)


STEP_HOOKS = StepHooks()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    before_steps(STEP_HOOKS.before)
    after_steps(STEP_HOOKS.after)
    backward_hooks.watch(begin=STEP_HOOKS.begin, end=STEP_HOOKS.end)


def _is_real(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step computes anything now, on weights that have values."""
    return not sampled.is_capturing() and steps_have_values(optimizer)


def _is_local(ddp: Any) -> bool:
    """Whether a wrapper is inside `no_sync`, or was so in its last forward pass.

    Source: forward notes the latter for its next call (torch 2.8 to 2.13,
    torch/nn/parallel/distributed.py), and does so without gradients, too.
    """
    sync = ddp.require_backward_grad_sync
    return not (sync and getattr(ddp, "require_forward_param_sync", True))


PROBE = Probe(install=install)
