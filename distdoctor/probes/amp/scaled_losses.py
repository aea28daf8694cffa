"""Tells whether a backward pass starts at a loss that was scaled, by whomever."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.accumulation import loss_terms

_MOST = 16  # losses that are remembered

_MOST_NODES = 40  # of a graph that are searched for a scaled loss


class ScaledLosses:
    """The losses that were scaled since a GradScaler last updated its scale.

    Attributes:
        scale: The factor that they were scaled by; 1.0: none was, or unknown.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._results: list[weakref.ref[Tensor]] = []
        self._given: list[weakref.ref[Tensor]] = []  # what a scaler multiplied
        self.scale = 1.0
        self._is_used = False  # a GradScaler is
        self._factors: set[float] = set()  # scales that the job may multiply with
        self._where = 0  # where the scale itself lies
        self._fresh = False  # a loss was scaled, and backward has not run since

    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        """Called when a GradScaler has scaled one or several losses."""
        if not is_on(scaler):
            return
        self._fresh, self.scale = True, _scale_of(scaler)
        self._is_used = True
        self._factors = {*self._factors, self.scale} - {1.0}
        self._where = scaler._scale.data_ptr()
        _remember(self._results, result)
        _remember(self._given, outputs)

    def asked(self, scale: float) -> None:
        """Called when the job has read the scale, and may multiply by it."""
        if self._is_used and scale != 1.0:
            self._factors = {scale, self.scale} - {1.0}

    def updated(self) -> None:
        """Called after `GradScaler.update`."""
        self._results.clear()
        self._given.clear()

    def begin(self, args: tuple[Any, ...]) -> bool:
        """Whether the backward pass about to run starts at a scaled loss."""
        fresh, self._fresh = self._fresh, False
        roots = [one for one in args[0] if isinstance(one, Tensor)] if args else []
        if self._comes_from_scaled(roots):
            return True
        plain = _alive(self._given)
        if any(one is other for one in roots for other in plain):
            return False  # what came of the scaling was left aside
        if fresh:
            return True
        if not self._is_used:
            return False
        begun = args[1] if len(args) > 1 and args[1] else ()
        if any(
            isinstance(one, Tensor)
            and one.is_cpu
            and one.numel() == 1
            and one.item() in self._factors
            for one in begun
        ):
            return True
        return any(
            loss_terms.is_multiplied(one, self._factors, self._where) for one in roots
        )

    def _comes_from_scaled(self, roots: Sequence[Tensor]) -> bool:
        """Whether backward begins at a loss that was scaled, or at what came of it."""
        if not self._results:
            return False
        alive = _alive(self._results)
        if any(one is other for one in roots for other in alive):
            return True
        wanted = {one.grad_fn for one in alive if one.grad_fn is not None}
        nodes = [one.grad_fn for one in roots if one.grad_fn is not None]
        for node in nodes:  # grows meanwhile
            if node in wanted:
                return True
            if len(nodes) < _MOST_NODES:
                nodes += [n for n, _ in node.next_functions if n is not None]
        return False


def is_on(scaler: Any) -> bool:
    """Whether a GradScaler is enabled, and of a kind whose calls are all seen."""
    made: Any = torch.amp.GradScaler
    kind = type(scaler)
    seen = isinstance(scaler, made) and kind.scale is made.scale
    return bool(seen and scaler._enabled)


def _scale_of(scaler: Any) -> float:
    """Its scale; 1.0 of one on a GPU, which would have to be waited for."""
    scale = getattr(scaler, "_scale", None)
    return float(scale) if isinstance(scale, Tensor) and scale.is_cpu else 1.0


def _remember(known: list[weakref.ref[Tensor]], several: Any) -> None:
    for one in several if isinstance(several, list | tuple) else [several]:
        if isinstance(one, Tensor) and len(known) < _MOST:
            known.append(weakref.ref(one))


def _alive(known: Sequence[weakref.ref[Tensor]]) -> list[Tensor]:
    return [tensor for ref in known if (tensor := ref()) is not None]
