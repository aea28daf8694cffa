"""Follows the backward passes that each optimizer accumulates for its next step."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.accumulation.loss_terms import Term
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.fingerprints.exact import local
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer

_EACH = 4  # up to this window each is looked at, then those that are powers of two

_SINGLES = 2  # steps with one pass each that are looked at before any with several

_CANDIDATES = 16  # last parameters of an optimizer, of which the smallest is watched

_MOST_ELEMENTS = 1 << 16  # of the parameter that is watched

GONE = (0, 0)
"""State of a gradient that is none."""

Batch = tuple[int, int]
"""The number of a pass over a loader, and of a batch in it."""

NO_BATCH: Batch = (-1, 0)
"""No loader has given one to train on."""


@dataclass(slots=True)
class BackwardPass:
    """One backward pass: its batch, its loss and which gradients it changed."""

    batch: Batch
    main: Term
    constants: tuple[float, ...]
    stack: int  # the line that called, and those that led there
    changed: frozenset[int] = frozenset()  # which of some parameters got gradients


class Account:
    """The backward passes whose gradients one optimizer accumulates."""

    def __init__(self, known: Optimizer) -> None:
        self.known = known
        self.windows = self.singles = 0
        self.unfit = False  # its gradients cannot be followed
        self.mark = NO_BATCH  # the last batch of the window before
        self._parameter: weakref.ref[Tensor] | None = None
        self.before = self.seen = GONE
        self._states: list[tuple[int, int]] = []
        self.reset()

    def reset(self) -> None:
        """Start anew: the gradients were cleared, or used by an optimizer step."""
        self.passes: list[BackwardPass] = []
        self.count = self.strange = 0  # passes for it, and others meanwhile
        self.own = 0.0
        self.unclear = False

    @property
    def due(self) -> bool:
        """Whether the present accumulation window is one of those to examine."""
        if self.unfit or (not self.windows and self.singles >= _SINGLES):
            return False
        number = self.windows + 1
        return number <= _EACH or number & (number - 1) == 0

    def gradient(self) -> Tensor | None:
        """The gradient of the watched parameter; None if there is none."""
        parameter = None if self._parameter is None else self._parameter()
        return None if parameter is None else gradient_of(parameter)

    def state(self) -> tuple[int, int]:
        """The address and version counter of the watched gradient."""
        return state_of(self.gradient())

    def changed(self) -> frozenset[int]:
        """Positions of candidate parameters whose gradients changed since last call."""
        some = self.known.held()[-_CANDIDATES:]
        now = [state_of(gradient_of(one)) for one in some]
        before, self._states = self._states, now
        if len(before) != len(some):
            return frozenset()
        pairs = enumerate(zip(before, self._states, strict=True))
        return frozenset(at for at, (old, new) in pairs if old != new)

    def choose(self) -> None:
        """Choose a parameter that has a gradient as the watched one, if any."""
        held = [tensor for tensor in self.known.held() if tensor.grad is not None]
        some = [*held[:1], *held[-_CANDIDATES:]]
        self.unfit = any(map(optimizers.is_flattened, some))
        fit = [
            tensor
            for tensor in held[-_CANDIDATES:]
            if tensor.numel() <= _MOST_ELEMENTS and _is_plain(tensor)
        ]
        if fit and not self.unfit:
            self._parameter = weakref.ref(min(fit, key=Tensor.numel))

    def is_hooked(self) -> bool:
        """Whether a user's hook may change gradients during a backward pass."""
        parameter = None if self._parameter is None else self._parameter()
        if parameter is None:
            return True
        later = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        hooks = [*(parameter._backward_hooks or {}).values(), *later.values()]
        return not all(map(_is_ours, hooks))


def latest() -> Batch:
    """The training batch that a DataLoader returned last; or `NO_BATCH`."""
    reading = SAMPLES.latest
    if reading is None or not reading.begun:
        return NO_BATCH
    return reading.part.number, reading.given


def state_of(gradient: Tensor | None) -> tuple[int, int]:
    """A gradient's address and version counter: a backward pass changes one of them."""
    if gradient is None:
        return GONE
    strided = gradient.layout is torch.strided
    where = gradient.data_ptr() if strided else id(gradient)  # sparse ones have none
    return where, gradient._version


def gradient_of(parameter: Tensor) -> Tensor | None:
    """A parameter's gradient; if sharded, the local part, to which FSDP adds."""
    gradient = parameter.grad
    return None if gradient is None else local(gradient)


def _is_plain(tensor: Tensor) -> bool:
    gradient = gradient_of(tensor)
    return (
        gradient is not None
        and gradient.layout is torch.strided
        and gradient.is_floating_point()
    )


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("distdoctor.")
