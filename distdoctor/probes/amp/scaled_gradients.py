"""Checks gradients that are still scaled by a GradScaler when clipped or stepped with.

Numbers are read at a few times only, and on a GPU where the GradScaler has just waited
for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from distdoctor.model.observations import optimizer_step as words
from distdoctor.model.observations.amp import (
    EARLY,
    EMPTY,
    STEPPED,
    UNSCALED,
    UNUSED,
    Handed,
    Limited,
    Refused,
    ScaleRead,
    Scaling,
)
from distdoctor.model.observations.optimizer_step import packed
from distdoctor.probes.amp.grad_scalers import scale_of
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import sampled
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import call_hooks, optimizers, step_protocol
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_NOTES = 64  # of each kind

_MOST_LINES = 8

_LAST_WORDS = 24

_OFTEN = 8  # times that something is looked at in a row, then at powers of two

_REFUSALS = (
    ("already been called since the last update", STEPPED),
    ("unscale_() is being called after step", STEPPED),
    ("already been called on this optimizer", UNSCALED),
    ("_scale is None", UNUSED),
    ("No inf checks were recorded prior to update", EARLY),
    ("No inf checks were recorded for this optimizer", EMPTY),
)
"""Parts of messages; torch 2.8 to 2.13, torch/amp/grad_scaler.py."""

_BETWEEN = frozenset({words.CLIP, words.CHANGED, words.EXCHANGE, words.SCHEDULE})
"""Words that leave scaled gradients scaled, as far as they tell."""


def is_due(time: int) -> bool:
    """Whether the n-th occurrence (from 1) is one of those to examine."""
    return time <= _OFTEN or time & (time - 1) == 0


def is_scaled(history: Sequence[str]) -> bool:
    """Whether gradients with this history of words are still scaled."""
    for word in reversed(history):
        kind = word.partition("/")[0]
        if kind == words.SCALED:
            return True
        if kind not in _BETWEEN:
            return False
    return False


class _Clip:
    """A clipping of scaled gradients, whose values are not read yet."""

    def __init__(self, how: str, limit: float, found: Any, site: str) -> None:
        self.how, self.limit, self.found, self.site = how, limit, found, site


class Scalings:
    """Follows a GradScaler's losses and the gradients that they give."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._scalers: WeakSet[Any] = WeakSet()
        self._notes: dict[type, int] = {}
        self._lines: set[str] = set()
        self._clips: dict[int, _Clip] = {}  # by optimizer
        self._times: dict[tuple[str, int], int] = {}
        self._reported: set[tuple[object, ...]] = set()
        self._largest = 0.0

    def _is_time(self, what: str, number: int) -> bool:
        key = what, number
        self._times[key] = self._times.get(key, 0) + 1
        return is_due(self._times[key])

    def _observe(self, note: Any, site: str) -> None:
        kind = type(note)
        self._notes[kind] = self._notes.get(kind, 0) + 1
        if self._notes[kind] <= _MOST_NOTES:
            RECORDER.observe(note, site)

    # --- the scale ---

    def scaled(self, scaler: Any, _outputs: Any, _result: Any) -> None:
        """Called when a GradScaler has scaled a loss."""
        if scaler in self._scalers or not scaler.is_enabled():
            return
        self._scalers.add(scaler)
        kind = type(scaler).__name__
        observation = Scaling(kind=kind, scale=float(scaler._init_scale))
        self._observe(observation, call_site(3))

    def asked(self, scale: float) -> None:
        """Called when the user's code has called `get_scale`."""
        step_protocol.PROTOCOL.losses.asked(scale)
        if len(self._lines) >= _MOST_LINES:
            return
        if not any(
            is_scaled(history) for _, _, history in step_protocol.PROTOCOL.histories()
        ):
            return
        site = call_site(3)
        if site and site not in self._lines:
            self._lines.add(site)
            self._observe(ScaleRead(), site)

    def refused(self, scaler: Any, optimizer: Any, method: str, message: str) -> None:
        """Called when a method of a GradScaler has raised an error."""
        why = next((why for part, why in _REFUSALS if part in message), "")
        if not why:
            return
        self.scaled(scaler, None, None)  # if it never was
        for one, number, history in step_protocol.PROTOCOL.histories():
            if optimizer is None or one is optimizer:
                self._observe(
                    Refused(
                        optimizer=number,
                        method=method,
                        why=why,
                        words=packed(history[-_LAST_WORDS:]),
                    ),
                    call_site(3),
                )

    # --- clips ---

    def clipping(self, this: Clipping) -> None:
        """Called before gradients are clipped."""
        self._largest = 0.0
        if this.by_value and self._scalers and self._is_time("before", 0):
            self._largest = _largest(this.parameters)

    def clipped(self, this: Clipping) -> None:
        """Called after gradients were clipped."""
        how = "value" if this.by_value else "norm"
        found = (self._largest or None) if this.by_value else this.norm
        if not self._scalers or not isinstance(this.bound, int | float):
            return
        for _, number, history in step_protocol.PROTOCOL.histories():
            if history[-1:] != [words.CLIP] or not is_scaled(history):
                continue
            if self._is_time(how, number):
                site = call_site(3)
                self._clips[number] = _Clip(how, float(this.bound), found, site)

    def tried(self, scaler: Any, optimizer: Any) -> None:
        """Called after `GradScaler.step`, which waited for the GPU, if any."""
        known = optimizers.of(optimizer)
        clip = None if known is None else self._clips.pop(known.number, None)
        if known is None or clip is None or clip.found is None:
            return
        if not math.isfinite(clip.limit):
            return  # that is how to ask for the norm
        found = float(clip.found)
        found = found if math.isfinite(found) else 0.0
        key = known.number, clip.how, clip.limit, found > clip.limit
        if key in self._reported:
            return
        self._reported.add(key)
        self._observe(
            Limited(
                optimizer=known.number,
                how=clip.how,
                limit=clip.limit,
                found=found,
                scale=scale_of(scaler),
            ),
            clip.site,
        )

    # --- what a scaler gets ---

    def trying(self, scaler: Any, optimizer: Any) -> None:
        """Called before `GradScaler.step` unscales gradients and steps."""
        history: list[str] = []
        number = -1
        for one, known, its in step_protocol.PROTOCOL.histories():
            if one is optimizer:
                number, history = known, its
        if (
            words.CHANGED not in history
            or words.CLIP in history
            or not is_scaled(history)
        ):
            return
        if not scaler.is_enabled() or not self._is_time("handed", number):
            return
        held = [one for group in optimizer.param_groups for one in group["params"]]
        gradients = [one.grad for one in held if one.grad is not None]
        if not gradients or not all(map(_is_readable, gradients)):
            return
        norm = math.sqrt(math.fsum(sampled.norm_of(one) ** 2 for one in gradients))
        largest = _largest(held)
        if math.isfinite(norm) and math.isfinite(largest):
            self._observe(
                Handed(
                    optimizer=number,
                    norm=norm,
                    largest=largest,
                    scale=scale_of(scaler),
                ),
                call_site(3),
            )


def _is_readable(gradient: Tensor) -> bool:
    return (
        gradient.is_cpu
        and type(gradient) is Tensor
        and gradient.layout is torch.strided
        and gradient.numel() > 0
    )


def _largest(parameters: Iterable[Any]) -> float:
    """The largest magnitude in gradients on the CPU; 0.0 if some are elsewhere."""
    found = 0.0
    for one in parameters:
        gradient = getattr(one, "grad", None)
        if gradient is None:
            continue
        if not _is_readable(gradient):
            return 0.0
        least, most = torch.aminmax(gradient.detach())
        found = max(found, -float(least), float(most))
    return found


SCALINGS = Scalings()


def install() -> None:
    """Install the probe at the first `init_process_group`, after `step_protocol`."""
    for listeners, function in (
        (CALL_HOOKS.scaled, SCALINGS.scaled),
        (CALL_HOOKS.trying, SCALINGS.trying),
        (CALL_HOOKS.tried, SCALINGS.tried),
        (CALL_HOOKS.refused, SCALINGS.refused),
    ):
        call_hooks.tell(listeners, function)
    clip_hooks.watch(SCALINGS.clipping, SCALINGS.clipped)
    asked = harmless(SCALINGS.asked)

    def get_scale(made: Any, self: Any) -> Any:
        scale = made(self)
        asked(scale)
        return scale

    replace(torch.amp.GradScaler, "get_scale", get_scale)


PROBE = Probe(install=install, reset=SCALINGS.reset)
