"""Records models' fingerprints when they are wrapped and around optimizer steps.

Fingerprints are cheap ones at each step, and of everything at steps that become rarer,
the same on all ranks. Nothing is sent: the ranks are compared where all journals are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from distdoctor.model.observations.replicas import Loaded, Optimised
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.true_steps import after_steps, before_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import steps_have_values
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import (
    batch_norm_use,
    module_origins,
    trained_models,
    weight_averages,
)
from distdoctor.probes.replicas.watched_models import Watched, is_whole

_LOOSE = 1000
"""Numbers from here on are for tensors that are part of no module."""

_MOST_OPTIMIZERS = 64  # in some jobs each round makes its own

_watched: dict[int, Watched] = {}
_by_optimizer: WeakKeyDictionary[Optimizer, tuple[int, list[Watched]]] = (
    WeakKeyDictionary()
)
_loose = 0
"""How many optimizers had tensors that are part of no module."""

_inside: list[tuple[int, FrameType]] = []
"""Optimizers that are in a step, by their identity, and the frame that called."""


def install() -> None:
    """Install the probe; called right after `import torch`."""
    module_origins.watch_loading(_loading)
    before_steps(_before)
    after_steps(_after)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _loose
    _loose = 0
    _watched.clear()
    _by_optimizer.clear()
    _inside.clear()


def tell_all() -> None:
    """Write what is not written yet; called before the journal ends."""
    for watched in _watched.values():
        watched.tell_all()
    batch_norm_use.end()


@harmless
def wrapped(ddp: Any, ranks: tuple[int, ...]) -> None:
    """Called when a DDP wrapper was made, which synchronised the ranks' models.

    Args:
        ddp: The wrapper.
        ranks: Ranks that share the model; empty: all.
    """
    if RECORDER.writer is None:
        return
    model = trained_models.wrapped(ddp, "ddp")
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    inside = model.module
    assert inside is not None
    parameters = [
        (name, one)
        for name, one in inside.named_parameters()
        if is_whole(one) and name not in ignored
    ]
    site = module_origins.site_of(inside) or call_site(3)
    watched = Watched(model.number, parameters, site, ranks, wrapped=True)
    _watched[model.number] = watched
    _by_optimizer.clear()  # one that was made before trains this from now on
    watched.wrapped(call_site(3))
    batch_norm_use.know(watched, inside, ddp)


@harmless
def _loading(module: nn.Module, site: str) -> None:
    """A model is loaded that is known already."""
    bare = trained_models.bare(module)
    for model in trained_models.models() if _watched else ():
        watched = _watched.get(model.number)
        if watched is not None and model.module is bare and watched.is_worth_telling():
            observation = Loaded(model=model.number, steps=watched.step)
            RECORDER.observe(observation, site)


# --- steps ---


def _before(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if RECORDER.writer is not None and steps_have_values(optimizer):
        _stepping(optimizer)


def _after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if RECORDER.writer is not None and steps_have_values(optimizer):
        _stepped(optimizer)


@harmless
def _stepping(optimizer: Optimizer) -> None:
    frame = sys._getframe(3)
    while _inside and not _is_running(_inside[-1][1], frame):
        _inside.pop()  # its step ended by an exception
    _inside.append((id(optimizer), frame))
    if len(_inside) > 1:
        return  # it is a part of another one, and has parts of tensors
    weight_averages.stepping()
    loaded = module_origins.loading_site_of(optimizer)
    for watched in _of(optimizer):
        if loaded:
            observation = Loaded(model=watched.number, steps=watched.step, state=True)
            RECORDER.observe(observation, loaded)
        watched.before(optimizer)


@harmless
def _stepped(optimizer: Optimizer) -> None:
    if not _inside or _inside[-1][0] != id(optimizer):
        return
    _inside.pop()
    if not _inside:
        for watched in _of(optimizer):
            watched.after()
            weight_averages.stepped(watched, trained_models.numbered(watched.number))
            batch_norm_use.stepped(watched)


def _is_running(frame: FrameType, now: FrameType | None) -> bool:
    while now is not None:
        if now is frame:
            return True
        now = now.f_back
    return False


def _of(optimizer: Optimizer) -> list[Watched]:
    """The models that an optimizer trains."""
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    known = _by_optimizer.get(optimizer)
    if known is not None and known[0] == count:
        return known[1]
    found = _find(optimizer) if len(_by_optimizer) < _MOST_OPTIMIZERS else []
    _by_optimizer[optimizer] = count, found
    site = module_origins.site_of_optimizer(optimizer)
    if known is None:
        for watched in found:
            observation = Optimised(model=watched.number, kind=type(optimizer).__name__)
            RECORDER.observe(observation, site)
    return found


def _find(optimizer: Optimizer) -> list[Watched]:
    global _loose
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    found = []
    loose = {id(one): one for one in parameters}
    for model in trained_models.holding(parameters):
        module = model.module
        if module is None:
            continue
        for number in model.named():
            loose.pop(number, None)
        watched = _watched.get(model.number)
        if watched is None:
            watched = _watch(model.number, module)
        found.append(watched)
    if loose and _loose < _MOST_OPTIMIZERS:
        number = _LOOSE + _loose
        _loose += 1
        named = [(f"parameter {n}", one) for n, one in enumerate(loose.values())]
        site = module_origins.site_of_optimizer(optimizer)
        _watched[number] = Watched(number, _whole(named), site)
        found.append(_watched[number])
    return found


def _watch(number: int, module: nn.Module) -> Watched:
    parameters = _whole(list(module.named_parameters()))
    watched = Watched(number, parameters, module_origins.site_of(module))
    _watched[number] = watched
    batch_norm_use.know(watched, module, None)
    return watched


def _whole(named: Sequence[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(name, one) for name, one in named if is_whole(one)]


PROBE = Probe(install=install, flush=tell_all, reset=reset)
