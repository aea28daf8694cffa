"""Finds buffers that training updates, such as running statistics in custom layers.

BatchNorm's are known by their class. Others are known by what becomes of them: floating
ones that are saved with the model, and are not what they were when it was met. Whether
the layer's own forward pass changes them, or somebody else, is looked at in a few steps
after the first; until then nothing hooks into the passes.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.replicas.changing_lines import compiles
from distdoctor.probes.replicas.watched_models import is_whole

_MOST_BUFFERS = 256  # of a model
_MOST_BYTES = 1 << 26  # of one
_LAST_LOOK = 4  # step after which buffers are looked for

LAST_STEP = 8
"""After which passes are no longer looked at."""


class Running:
    """The buffers of a model that may be running statistics.

    Args:
        module: The model, as it was when found.
        ignored: Names of buffers that DistributedDataParallel is told to ignore.
    """

    def __init__(self, module: nn.Module, ignored: Collection[str]) -> None:
        self._kept = [
            (f"{name}.{key}".lstrip("."), weakref.ref(layer), key)
            for name, layer in module.named_modules()
            if not isinstance(layer, _BatchNorm)
            for key, one in layer._buffers.items()
            if key not in layer._non_persistent_buffers_set
            and one is not None
            and _is_statistic(one)
        ]
        kept = [one for one in self._kept if one[0] not in ignored]
        self._kept = kept[:_MOST_BUFFERS]
        self._begun = self._prints()
        self._followed: set[str] = set()
        self.own: set[str] = set()

    def _buffers(self) -> list[Tensor]:
        """As they are now; a stand-in for those that are gone."""
        found = []
        for _, ref, key in self._kept:
            layer = ref()
            one = None if layer is None else layer._buffers.get(key)
            found.append(one if one is not None and _is_statistic(one) else _NOTHING)
        return found

    def _prints(self) -> tuple[int, ...]:
        return exact.of_tensors(self._buffers())

    def changed(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers that changed since the model was found, by name."""
        rows = zip(self._kept, self._buffers(), self._begun, strict=True)
        now = self._prints()
        for ((name, _, _), one, begun), number in zip(rows, now, strict=True):
            if number != begun and one is not _NOTHING:
                yield name, one

    @harmless
    def stepped(self, step: int) -> None:
        """Called after an optimizer step of the model."""
        if step <= _LAST_LOOK and self._kept and not compiles():
            changed = {name for name, _ in self.changed()} - self._followed
            self._followed |= changed
            for name, ref, key in self._kept:
                layer = ref() if name in changed else None
                if layer is not None:
                    _, followed = _layers.setdefault(id(layer), (ref, []))
                    followed.append((self, name, key))
            if _layers and not _hooks:
                _hooks.append(
                    register_module_forward_pre_hook(
                        unseen_by_compilers(_entering, nn.Module._call_impl)
                    )
                )
                _hooks.append(
                    register_module_forward_hook(
                        unseen_by_compilers(_leaving, nn.Module._call_impl)
                    )
                )
        if step >= LAST_STEP and _hooks:
            reset()


def _is_statistic(tensor: Tensor) -> bool:
    return (
        is_whole(tensor)
        and tensor.is_cpu
        and tensor.is_floating_point()
        and 0 < tensor.numel() * tensor.element_size() <= _MOST_BYTES
    )


_NOTHING = Tensor()

_layers: dict[int, tuple[weakref.ref[nn.Module], list[tuple[Running, str, str]]]] = {}
"""Those with buffers of which it is not known what changes them, by identity."""

_hooks: list[Any] = []

_before: dict[int, list[tuple[Tensor, int]]] = {}
"""Buffers of the layers that compute now."""


def reset() -> None:
    """Forget all state: another run starts, or nothing is left to find out."""
    _layers.clear()
    _before.clear()
    while _hooks:
        _hooks.pop().remove()


def _entering(module: nn.Module, _args: Any) -> None:
    """A module is about to compute; hot for a few steps."""
    if id(module) in _layers and module.training:
        _note(module)


def _leaving(module: nn.Module, _args: Any, _result: Any) -> None:
    if id(module) in _before:
        _compare(module)


@harmless
def _note(module: nn.Module) -> None:
    ref, kept = _layers[id(module)]
    if ref() is module:
        buffers = [module._buffers.get(key) for _, _, key in kept]
        if all(one is not None and not one.is_inference() for one in buffers):
            _before[id(module)] = [
                (one, one._version) for one in buffers if one is not None
            ]


@harmless
def _compare(module: nn.Module) -> None:
    kept = _layers[id(module)][1]
    before = _before.pop(id(module))
    for (running, name, key), (old, version) in zip(kept, before, strict=True):
        now = module._buffers.get(key)
        if now is not old or now._version != version:
            running.own.add(name)


PROBE = Probe(reset=reset)
