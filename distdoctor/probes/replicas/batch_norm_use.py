"""Records small BatchNorm batches, and the buffers that evaluations start from.

Evaluations start from other running statistics as well, and may be given them once they
have begun: buffers are looked at again at the end.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from distdoctor.model.observations.replicas import Evaluated, Normalised
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import backward_hooks
from distdoctor.probes.patching import traced_as
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import module_origins, running_buffers, weight_averages
from distdoctor.probes.replicas.running_buffers import Running
from distdoctor.probes.replicas.watched_models import Watched, is_whole, samples_of

_MOST_LAYERS = 4  # that are asked for their batch at a time
_MOST_NODES = 20_000  # of a graph, that are gone through
_MOST_LOOKS = 16  # at graphs; layers may be in evaluation mode all the time
_MOST_TOLD = 200  # evaluations
_MOST_BUFFERS = 512


class _Known:
    """A trained model whose evaluations are recorded."""

    def __init__(
        self, watched: Watched, module: nn.Module, ddp: nn.Module | None
    ) -> None:
        self.watched = watched
        self.module = weakref.ref(module)
        self.ddp = None if ddp is None else weakref.ref(ddp)
        self.running = Running(module, getattr(ddp, "parameters_to_ignore", ()))
        self.evaluating = False
        self.reported = 0


_known: dict[int, tuple[weakref.ref[nn.Module], _Known]] = {}
"""By the identity of a model, and of its wrapper."""


def install() -> None:
    """Install the probe; called right after `import torch`."""
    made = nn.Module.train

    @functools.wraps(made)
    def train(self: Any, mode: bool = True) -> Any:
        result = made(self, mode)
        if torch.compiler.is_compiling():
            return result
        if _known and id(self) in _known:  # not for each of its parts
            _turned(self, mode)
        weight_averages.turned(self, mode)
        return result

    traced_as(made, train)
    nn.Module.train = train  # type: ignore[method-assign]
    backward_hooks.watch(part=_beginning)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _known.clear()
    _layers.clear()


def stepped(watched: Watched) -> None:
    """Called after an optimizer step of a model."""
    if watched.step <= running_buffers.LAST_STEP:
        for _, known in _known.values():
            if known.watched is watched:
                known.running.stepped(watched.step)
                break


@harmless
def end() -> None:
    """Called before the journal ends: evaluations under way are over."""
    for known in {id(one): one for _, one in _known.values()}.values():
        if known.evaluating and RECORDER.writer is not None:
            known.evaluating = False
            _tell(known, over=True, site="")


@harmless
def know(watched: Watched, module: nn.Module, ddp: nn.Module | None) -> None:
    """Called when a trained model was found or wrapped."""
    if next(module.buffers(), None) is None:
        return
    known = _Known(watched, module, ddp)
    for one in (module, ddp):
        if one is not None:
            _known[id(one)] = weakref.ref(one), known
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm):
            weight = getattr(layer, "weight", None)
            if weight is not None and len(_layers) < _MOST_LAYERS:
                _layers[id(weight)] = name, weakref.ref(layer)


_layers: dict[int, tuple[str, weakref.ref[nn.Module]]] = {}
"""Layers whose batch was not seen yet, by the identity of their weight."""

_looks = 0


def _beginning(args: tuple[Any, ...]) -> None:
    """Look at what a backward pass goes through, if there is somebody to ask."""
    weight_averages.training()
    if _layers:
        _look(args[0])


@harmless
def _look(tensors: Any) -> None:
    global _looks
    found = False  # any batch normalisation
    _looks += 1
    nodes = [one.grad_fn for one in tensors if isinstance(one, Tensor)]
    seen: set[Any] = set()
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        following = [one for one, _ in node.next_functions]
        nodes += following
        trains = getattr(node, "_saved_training", False)
        if trains and "BatchNormBackward" in node.name():
            for one in following:
                weight = getattr(one, "variable", None)
                layer = None if weight is None else _layers.get(id(weight))
                if layer is not None:
                    found = True
                    name, ref = layer
                    _note(name, ref, [int(n) for n in node._input_metadata[0].shape])
    if found or _looks >= _MOST_LOOKS:
        _layers.clear()


def _note(name: str, ref: weakref.ref[nn.Module], shape: Sequence[int]) -> None:
    layer = ref()
    if layer is None or RECORDER.writer is None or len(shape) < 2:
        return
    observation = Normalised(
        layer=name,
        kind=type(layer).__name__,
        samples=shape[0],
        values=math.prod(shape) // max(shape[1], 1),
    )
    RECORDER.observe(observation, module_origins.site_of_layer(layer))


@harmless
def _turned(module: nn.Module, mode: bool) -> None:
    """A known model was put into training mode (True) or evaluation mode."""
    ref, known = _known[id(module)]
    if ref() is not module or RECORDER.writer is None or known.evaluating is not mode:
        return
    known.evaluating = not mode
    _tell(known, over=mode, site=call_site(3))


def _tell(known: _Known, *, over: bool, site: str) -> None:
    known.reported += 1
    module = known.module()
    if known.reported > _MOST_TOLD or module is None:
        return
    ddp = None if known.ddp is None else known.ddp()
    # Others, that training leaves alone, may well be meant to be each rank's own.
    buffers = [
        (f"{name}.{kind}".lstrip("."), one)
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for kind, one in layer.named_buffers(recurse=False)
        if is_whole(one) and one.is_cpu
    ][:_MOST_BUFFERS]
    others = list(known.running.changed())
    own = known.running.own
    every = [*buffers, *others]
    observation = Evaluated(
        model=known.watched.number,
        steps=known.watched.step,
        names=tuple(name for name, _ in every),
        running=tuple(name for name, _ in others if name in own),
        changed=tuple(name for name, _ in others if name not in own),
        prints=exact.of_tensors([one for _, one in every]),
        samples=samples_of(one for _, one in every),
        shared=bool(getattr(ddp, "broadcast_buffers", False)),
        over=over,
    )
    RECORDER.observe(observation, site)


PROBE = Probe(install=install, reset=reset)
