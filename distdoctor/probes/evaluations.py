"""Sees what BatchNorm does: how few samples it has, and what evaluations start from."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from distdoctor.model.observed.weights import Evaluated, Normalised
from distdoctor.probes import making, prints
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.sites import call_site
from distdoctor.probes.tracing import compiles
from distdoctor.probes.watched import Watched, is_whole, samples_of

_MOST_LAYERS = 3  # of a model, that are asked for their batch
_MOST_TOLD = 200  # evaluations
_MOST_BUFFERS = 512


class _Known:
    """A model whose evaluations are to be seen."""

    def __init__(self, watched: Watched, ddp: nn.Module | None) -> None:
        self.watched = watched
        self.ddp = None if ddp is None else weakref.ref(ddp)
        self.evaluating = False
        self.told = 0


_known: dict[int, tuple[weakref.ref[nn.Module], _Known]] = {}
"""By the identity of a model, and of its wrapper."""


def install() -> None:
    """Right after `import torch`."""
    made = nn.Module.train

    @functools.wraps(made)
    def train(self: Any, mode: bool = True) -> Any:
        result = made(self, mode)
        if _known and id(self) in _known:  # not for each of its parts
            _turned(self, mode)
        return result

    nn.Module.train = train  # type: ignore[method-assign]


def forget() -> None:
    """Another run begins."""
    _known.clear()


@harmless
def know(watched: Watched, module: nn.Module, ddp: nn.Module | None) -> None:
    """A model that is trained was met, or wrapped."""
    if next(module.buffers(), None) is None:
        return
    known = _Known(watched, ddp)
    for one in (module, ddp):
        if one is not None:
            _known[id(one)] = weakref.ref(one), known
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
    ]
    if not compiles():
        for name, layer in layers[:_MOST_LAYERS]:
            _names[layer] = name
            layer.register_forward_pre_hook(normalising)


_names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def normalising(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Hook of a BatchNorm layer; it goes away once it was called in training."""
    if layer.training:
        _remove(layer)
        _note(layer, inputs)


@harmless
def _remove(layer: nn.Module) -> None:
    hooks = layer._forward_pre_hooks
    for number in [number for number, hook in hooks.items() if hook is normalising]:
        del hooks[number]


@harmless
def _note(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    batch = inputs[0] if inputs else None
    if not isinstance(batch, Tensor) or batch.dim() < 2 or not torch.is_grad_enabled():
        return
    told = Normalised(
        rank=-1,
        layer=_names.get(layer, ""),
        kind=type(layer).__name__,
        samples=batch.shape[0],
        values=batch.numel() // max(batch.shape[1], 1),
    )
    RECORDER.observe(told, making.site_of_layer(layer))


@harmless
def _turned(module: nn.Module, mode: bool) -> None:
    """A known model was put into training mode (True) or evaluation mode."""
    ref, known = _known[id(module)]
    if ref() is not module or RECORDER.writer is None or known.evaluating is not mode:
        return
    known.evaluating = not mode
    known.told += 1
    if known.told > _MOST_TOLD:
        return
    ddp = None if known.ddp is None else known.ddp()
    inside = getattr(module, "module", module) if module is ddp else module
    buffers = [
        (name, one)
        for name, one in inside.named_buffers()
        if not mode and is_whole(one) and one.is_cpu
    ][:_MOST_BUFFERS]
    told = Evaluated(
        rank=-1,
        model=known.watched.number,
        steps=known.watched.step,
        names=tuple(name for name, _ in buffers),
        prints=prints.of_tensors([one for _, one in buffers]),
        samples=samples_of(one for _, one in buffers),
        shared=bool(getattr(ddp, "broadcast_buffers", False)),
        over=mode,
    )
    RECORDER.observe(told, call_site(3))
