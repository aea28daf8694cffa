"""Writes down tensors before the first steps, to be compared with a reference.

Only where that is asked for: parameters and gradients are written whole, with what
models were given. The run of the reference is made once more with all weights moved by
a rounding, so that what roundings come to is known.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from distdoctor.journal.environment import VALUES_VARIABLE
from distdoctor.journal.value_files import (
    BEHIND_BACKWARD,
    GIVEN,
    GRADIENT,
    OUTPUT,
    WEIGHT,
    write_values,
)
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.comparison.arrays import array_of
from distdoctor.probes.comparison.forward_hooks import tell, tensors_in
from distdoctor.probes.comparison.given_outputs import GivenOutputs, is_for_shapes
from distdoctor.probes.comparison.lossy_hooks import lossy_hooks
from distdoctor.probes.comparison.model_names import ModelNames
from distdoctor.probes.comparison.operations_seen import OperationsSeen
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models
from distdoctor.probes.rng.stream_states import States, moved, states

_MOST_STEPS = 4
_MOST_BYTES = 256 << 20  # of a process
_MOST_GIVEN_BYTES = 32 << 20  # between two steps
_MOST_STEPS_WITH_OUTPUTS = 2  # later ones have other weights where the first departed


class WrittenValues:
    """Collects what is computed up to a step, and writes it down with the weights."""

    def __init__(self, *, moved: bool) -> None:
        self._move = moved
        self._moved: set[int] = set()
        self._step = self._bytes = 0
        self._depth = 0  # of modules that are inside `forward`
        self._for_shapes = False
        # Of the run that nobody compares but for the size of roundings.
        self._operations = OperationsSeen() if moved else None
        self._outputs = GivenOutputs()
        self._names = ModelNames()
        self._begin()

    def _begin(self) -> None:
        self._given: dict[str, Any] = {}
        self._given_bytes = 0
        self._random: dict[str, None] = {}
        self._of_batch: dict[str, None] = {}
        self._lossy: dict[str, None] = {}
        self._rounding = 0.0
        self._called = ""
        self._streams: States = {}
        self._outputs.clear()

    # --- forward passes ---

    def entering(self, module: nn.Module, given: Any) -> None:
        """Called before the forward pass of a module."""
        self._depth += 1
        if self._step < _MOST_STEPS and torch.is_grad_enabled():
            self._enter(module, given)

    def leaving(self, module: nn.Module, output: Any) -> None:
        """Called after the forward pass of a module, also if it raised."""
        self._depth = max(0, self._depth - 1)
        if self._operations is not None and self._step < _MOST_STEPS_WITH_OUTPUTS:
            self._look_on(self._operations, module)
        if self._step < _MOST_STEPS and torch.is_grad_enabled():
            self._leave(module, output)

    @harmless
    def _enter(self, module: nn.Module, given: Any) -> None:
        if self._depth == 1:
            self._for_shapes = is_for_shapes()
            self._lossy.update(dict.fromkeys(lossy_hooks(module)))
        if self._for_shapes:
            return
        if self._step < _MOST_STEPS_WITH_OUTPUTS:
            self._outputs.called(module)
        own = isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm)
        if own and module.training:
            self._of_batch.setdefault(type(module).__name__)
        if self._depth > 1:
            return
        self._streams = states({})
        if self._operations is not None and self._step < _MOST_STEPS_WITH_OUTPUTS:
            self._operations.begin()
            self._operations.lines()
        model = trained_models.bare(module)
        if (
            next(model.parameters(), None) is None
        ):  # a loss, whose targets are no samples
            return
        self._called = call_site(4)
        if self._move and id(model) not in self._moved:
            self._moved.add(id(model))
            _move(model)
        for tensor in tensors_in(given):
            if not tensor.requires_grad:
                self._keep(tensor)

    def _keep(self, tensor: torch.Tensor) -> None:
        array = array_of(tensor)
        self._given_bytes += 0 if array is None else array.nbytes
        if array is not None and self._given_bytes <= _MOST_GIVEN_BYTES:
            # A copy: it may be changed in place.
            self._given[f"{GIVEN}/{len(self._given)}"] = array.copy()

    @harmless
    def _look_on(self, operations: OperationsSeen, module: nn.Module) -> None:
        """A module has ended; behind the model, lines are those of the loss."""
        self._outputs.computed(module, operations.lines())
        if self._depth == 0 and operations.drew:
            operations.drew = False
            self._random.setdefault(type(trained_models.bare(module)).__name__)

    @harmless
    def _leave(self, module: nn.Module, output: Any) -> None:
        if self._for_shapes:
            return
        for tensor in tensors_in(output):
            if tensor.is_floating_point():
                self._rounding = max(self._rounding, torch.finfo(tensor.dtype).eps)
        if self._step < _MOST_STEPS_WITH_OUTPUTS:
            self._outputs.gave(module, output)
        if self._depth == 0 and moved(self._streams, states({})):
            name = type(trained_models.bare(module)).__name__
            self._random.setdefault(name)

    # --- backward passes ---

    @harmless
    def began_backward(self, given: tuple[Any, ...]) -> None:
        """Called before a backward pass, with what the engine is given."""
        if self._step >= _MOST_STEPS or is_for_shapes():
            return
        if self._operations is not None:
            self._operations.end()  # what autograd calls is not the user's
            self._outputs.loss_lines += self._operations.lines()
        self._outputs.began_backward(given[0], call_site(4))

    @harmless
    def ended_backward(self) -> None:
        """Called after a backward pass."""
        if self._step >= _MOST_STEPS_WITH_OUTPUTS or is_for_shapes():
            return
        self._outputs.ended_backward()
        if self._operations is not None:
            self._operations.begin()

    # --- steps ---

    def stepping(self, optimizer: Any) -> None:
        """Called before an optimizer's step."""
        self._step += 1
        if self._operations is not None:
            self._end(self._operations)
        if self._step <= _MOST_STEPS:
            self._write(optimizer)
        self._begin()

    @harmless
    def _end(self, operations: OperationsSeen) -> None:
        operations.end()
        self._outputs.gradient_lines += operations.lines()

    @harmless
    def _write(self, optimizer: Any) -> None:
        held = [one for group in optimizer.param_groups for one in group["params"]]
        names, lines = self._names.parameters(held)
        arrays: dict[str, Any] = {}
        precision: dict[str, float] = {}
        partial: dict[str, Any] = {}
        size = 0
        for name, one in zip(names, held, strict=True):
            for sort, tensor in ((WEIGHT, one), (GRADIENT, one.grad)):
                array = None if tensor is None else array_of(tensor)
                if array is not None:
                    arrays[f"{sort}/{name}"] = array
                    size += array.nbytes
            if one.grad is not None and (left := _still_to_reduce(one.grad)):
                partial[name] = left
        # Others share the work with this optimizer: their weights matter, too.
        for name, one in self._names.others(held):
            array = array_of(one)
            if array is not None and f"{WEIGHT}/{name}" not in arrays:
                arrays[f"{WEIGHT}/{name}"] = array
                size += array.nbytes
        for name, one in zip(names, held, strict=True):
            if one.is_floating_point():
                own = torch.finfo(one.dtype).eps
                precision[name] = max(own, self._rounding)
        too_large = self._bytes + size + self._given_bytes > _MOST_BYTES
        if too_large:
            arrays = {}
        elif self._given_bytes <= _MOST_GIVEN_BYTES:
            arrays |= self._given
        outputs, kept = _outputs(self._names.modules(held), self._outputs)
        for name, one in zip(names, held, strict=True):
            if id(one) in self._outputs.gradients:
                kept[f"{BEHIND_BACKWARD}/{name}"] = self._outputs.gradients[id(one)]
        size += self._bytes + self._given_bytes
        if size + sum(array.nbytes for array in kept.values()) <= _MOST_BYTES:
            arrays |= kept
        told = {
            "partial": partial,
            "precision": precision,
            "held": names,
            "lines": {name: lines[name] for name in names if name in lines},
            "line": call_site(4),
            "called": self._called,
            "random": list(self._random),
            "of_batch": list(self._of_batch),
            "lossy": list(self._lossy),
            "too_large": too_large,
            "outputs": outputs,
            "losses": [
                one if math.isfinite(one) else None for one in self._outputs.losses
            ],
            "loss_line": self._outputs.loss_line,
            "by_hand": list(self._outputs.by_hand),
            "loss_lines": self._outputs.loss_lines,
            "gradient_lines": self._outputs.gradient_lines,
        }
        rank = _rank()
        self._bytes += write_values(RECORDER.folder, rank, self._step, arrays, told)


def _rank() -> int:
    if RECORDER.writer is not None:
        return RECORDER.writer.rank
    told = os.environ.get("RANK", "0")  # of one that joins nobody
    return int(told) if told.isdigit() else 0


def _outputs(
    names: Mapping[int, str], seen: GivenOutputs
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What modules gave, in order, and the arrays by name."""
    told: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    for one in seen.outputs():
        name = names.get(id(one.module))
        if name is None:
            continue
        at = len(told)
        lines = seen.lines_of.get(id(one.module), [])
        about = {"name": name, "line": one.line, "rounding": one.rounding}
        told.append({**about, "lines": lines})
        for n, array in enumerate(one.arrays):
            arrays[f"{OUTPUT}/{at}/{n}"] = array
    return told, arrays


def _still_to_reduce(gradient: torch.Tensor) -> tuple[str, list[int]] | None:
    """How, and over which ranks, DTensor has yet to reduce a gradient."""
    mesh, placements = (
        getattr(gradient, name, None) for name in ("device_mesh", "placements")
    )
    if mesh is None or placements is None:
        return None
    dimensions = [n for n, one in enumerate(placements) if one.is_partial()]
    here = mesh.get_coordinate()
    if not dimensions or here is None:
        return None
    ranks = mesh.mesh
    for n in reversed(range(ranks.ndim)):
        if n not in dimensions:
            ranks = ranks.select(n, here[n])
    reduce_op = str(getattr(placements[dimensions[0]], "reduce_op", "sum"))
    return reduce_op, [int(rank) for rank in ranks.reshape(-1).tolist()]


def _move(model: nn.Module) -> None:
    """Move all weights by a rounding, every other up and the rest down."""
    with torch.no_grad():
        for parameter in model.parameters():
            here = exact.local(parameter.data)
            if here.is_floating_point() and here.numel():
                rounding = torch.finfo(here.dtype).eps
                if torch.is_autocast_enabled(here.device.type):
                    other = torch.get_autocast_dtype(here.device.type)
                    rounding = max(rounding, torch.finfo(other).eps)
                sign = torch.ones_like(here).reshape(-1)
                sign[::2] = -1
                here.mul_(1 + rounding * sign.view_as(here))


def install() -> None:
    """Begin to collect values, because they are to be compared."""
    values = WrittenValues(moved=os.environ.get(VALUES_VARIABLE) == "moved")
    tell(values)
    backward_hooks.watch(begin=values.began_backward, end=values.ended_backward)


PROBE = Probe(install=install)
