"""Writes down tensors before the first steps, to be compared with a reference.

Only where that is asked for: parameters and gradients are written whole, with what
models were given. The run of the reference is made once more with all weights moved by
a rounding, so that what roundings come to is known.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from distdoctor.journal.environment import VALUES_VARIABLE
from distdoctor.journal.value_files import GIVEN, GRADIENT, WEIGHT, write_values
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.comparison.forward_hooks import tell, tensors_in
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import registrations, trained_models

_MOST_STEPS = 4
_MOST_BYTES = 256 << 20  # of a process
_MOST_GIVEN_BYTES = 32 << 20  # between two steps

_OF_WRAPPERS = {"module", "_fsdp_wrapped_module", "_orig_mod"} | {
    "_checkpoint_wrapped_module"
}
"""Parts of parameters' names that are no part of the user's."""


class WrittenValues:
    """Collects what is computed up to a step, and writes it down with the weights."""

    def __init__(self, *, moved: bool) -> None:
        self._move = moved
        self._moved: set[int] = set()
        self._step = self._bytes = 0
        self._depth = 0  # of modules that are inside `forward`
        self._begin()

    def _begin(self) -> None:
        self._given: dict[str, Any] = {}
        self._given_bytes = 0
        self._random: dict[str, None] = {}
        self._of_batch: dict[str, None] = {}
        self._rounding = 0.0
        self._called = ""
        self._state = 0

    # --- forward passes ---

    def entering(self, module: nn.Module, given: Any) -> None:
        """Called before the forward pass of a module."""
        self._depth += 1
        if self._step < _MOST_STEPS and torch.is_grad_enabled():
            self._enter(module, given)

    def leaving(self, module: nn.Module, output: Any) -> None:
        """Called after the forward pass of a module, also if it raised."""
        self._depth = max(0, self._depth - 1)
        if self._step < _MOST_STEPS and torch.is_grad_enabled():
            self._leave(module, output)

    @harmless
    def _enter(self, module: nn.Module, given: Any) -> None:
        own = isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm)
        if own and module.training:
            self._of_batch.setdefault(type(module).__name__)
        if self._depth > 1:
            return
        self._state = _random_state()
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
        array = _array(tensor)
        self._given_bytes += 0 if array is None else array.nbytes
        if array is not None and self._given_bytes <= _MOST_GIVEN_BYTES:
            self._given[f"{GIVEN}/{len(self._given)}"] = array

    @harmless
    def _leave(self, module: nn.Module, output: Any) -> None:
        for tensor in tensors_in(output):
            if tensor.is_floating_point():
                self._rounding = max(self._rounding, torch.finfo(tensor.dtype).eps)
        if self._depth == 0 and _random_state() != self._state:
            name = type(trained_models.bare(module)).__name__
            self._random.setdefault(name)

    # --- steps ---

    def stepping(self, optimizer: Any) -> None:
        """Called before an optimizer's step."""
        self._step += 1
        if self._step <= _MOST_STEPS:
            self._write(optimizer)
        self._begin()

    @harmless
    def _write(self, optimizer: Any) -> None:
        held = [one for group in optimizer.param_groups for one in group["params"]]
        names, lines = _named(held)
        arrays: dict[str, Any] = {}
        precision: dict[str, float] = {}
        partial: dict[str, Any] = {}
        size = 0
        for name, one in zip(names, held, strict=True):
            for sort, tensor in ((WEIGHT, one), (GRADIENT, one.grad)):
                array = None if tensor is None else _array(tensor)
                if array is not None:
                    arrays[f"{sort}/{name}"] = array
                    size += array.nbytes
            if one.grad is not None and (left := _still_to_reduce(one.grad)):
                partial[name] = left
            if one.is_floating_point():
                own = torch.finfo(one.dtype).eps
                precision[name] = max(own, self._rounding)
        too_large = self._bytes + size + self._given_bytes > _MOST_BYTES
        if too_large:
            arrays = {}
        elif self._given_bytes <= _MOST_GIVEN_BYTES:
            arrays |= self._given
        told = {
            "partial": partial,
            "precision": precision,
            "lines": {name: lines[name] for name in names if name in lines},
            "line": call_site(4),
            "called": self._called,
            "random": list(self._random),
            "of_batch": list(self._of_batch),
            "too_large": too_large,
        }
        rank = _rank()
        self._bytes += write_values(RECORDER.folder, rank, self._step, arrays, told)


def _rank() -> int:
    if RECORDER.writer is not None:
        return RECORDER.writer.rank
    told = os.environ.get("RANK", "0")  # of one that joins nobody
    return int(told) if told.isdigit() else 0


def _named(held: list[torch.Tensor]) -> tuple[list[str], dict[str, str]]:
    """Names of parameters, without those of wrappers, and the lines that made them."""
    names: dict[int, str] = {}
    lines: dict[str, str] = {}
    for model in trained_models.holding(held):
        module = model.module
        if module is None:
            continue
        prefix = f"model {model.number}." if names else ""
        for number, name in model.named().items():
            names.setdefault(number, prefix + _own(name))
        for name, line in registrations.lines_of(module).items():
            lines.setdefault(prefix + _own(name), line)
    return [names.get(id(one), f"? {at}") for at, one in enumerate(held)], lines


def _own(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)


def _array(tensor: torch.Tensor) -> Any:
    """The values of this rank's part of a tensor; None if it has none to be read."""
    here = exact.local(tensor.detach())
    if here.layout is not torch.strided or here.is_meta or here.is_quantized:
        return None
    if here.is_complex():
        here = torch.view_as_real(here.resolve_conj())
    if here.dtype in {torch.float16, torch.bfloat16} or here.dtype.itemsize < 1:
        here = here.float()
    return here.cpu().contiguous().numpy()


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


def _random_state() -> int:
    return exact.of_tensor(torch.get_rng_state())


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


PROBE = Probe(install=install)
