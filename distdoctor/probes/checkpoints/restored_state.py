"""Records what a job restores to its model, optimizer, scheduler and GradScaler.

At the first optimizer step after that it records where these stand: what was not
restored starts anew. Objects are known by numbers, and never kept alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data.distributed import DistributedSampler

from distdoctor.model.observations.checkpoints import (
    Continued,
    Given,
    Reached,
    Scheduled,
    Shuffled,
)
from distdoctor.probes.amp.grad_scalers import scale_of
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.checkpoints.checkpoint_contents import number_of, place_of
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.true_steps import before_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import state_matching

_MOST_NOTES = 10_000
_MOST_MODELS = 200
"""Loads of models that are looked at; networks that follow another load every step."""


class _Numbers:
    """Gives objects numbers, in the order of their first use."""

    def __init__(self) -> None:
        self.known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._next = 0

    def of(self, thing: Any) -> int:
        number = self.known.get(thing)
        if number is None:
            number = self.known[thing] = self._next
            self._next += 1
        return number


class _Course:
    """The progress of training; a new leg begins whenever state is restored."""

    def __init__(self) -> None:
        self.leg = 0
        self.stepped = False  # in this leg
        self.draws = False  # the next step is to be told as `Reached`
        self.names: set[str] = set()  # in the checkpoint that was read last
        self.notes = 0
        self.models = 0  # how many were given their state

    def restored(self) -> None:
        """Begin a new leg, unless no step was made in this one."""
        if self.stepped:
            self.leg += 1
            self.stepped = self.draws = False


_course = _Course()
_modules, _optimizers, _schedulers, _scalers = (_Numbers() for _ in range(4))
_legs: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # of the last step
_born: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # leg that made it
_inside = threading.local()


def install() -> None:
    """Install the probe; called right after `import torch`."""
    before_steps(_stepping)
    replace(nn.Module, "load_state_dict", _load_model)
    replace(Optimizer, "load_state_dict", _around("optimizer", _optimizers))
    for kind in vars(lr_scheduler).values():
        if not isinstance(kind, type) or kind.__module__ != lr_scheduler.__name__:
            continue
        if "load_state_dict" in vars(kind):
            replace(kind, "load_state_dict", _around("scheduler", _schedulers))
        if hasattr(kind, "step") and "__init__" in vars(kind):
            replace(kind, "__init__", _made_scheduler)
    scaler = torch.amp.GradScaler
    replace(scaler, "load_state_dict", _around("scaler", _scalers))
    replace(scaler, "__init__", _made_scaler)
    replace(DistributedSampler, "set_epoch", _set_epoch)


def loaded(names: set[str]) -> None:
    """Called when a checkpoint was loaded, with the names of its model tensors."""
    _course.restored()
    _course.names = names


def running() -> dict[str, Any]:
    """The positions of the job's schedulers and optimizers; fields of a `Stored`."""
    legs = dict(_legs)
    last = max(legs.values(), default=0)
    active = [optimizer for optimizer, leg in legs.items() if leg == last]
    filled = [optimizer for optimizer in active if optimizer.state]
    schedulers = list(_schedulers.known)
    position, schedule, _ = _schedule_of(
        [one for one in schedulers if any(_is_of(one, each) for each in active)]
    )
    return {
        "running": position,
        "running_schedule": schedule,
        "running_filled": len(filled),
        "rules": tuple(sorted(map(_rules, filled))),
    }


def scale() -> float:
    """The scale of the only GradScaler alive; 0 if there is not exactly one."""
    alive = [one for one in list(_scalers.known) if one.is_enabled()]
    return number_of(scale_of(alive[0])) if len(alive) == 1 else 0.0


# --- what is given back ---


def _around(what: str, numbers: _Numbers) -> Callable[..., Any]:
    def given(made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_inside, what, False):  # a class calls that of its base
            return made(self, *args, **kwargs)
        setattr(_inside, what, True)
        try:
            result = made(self, *args, **kwargs)
        finally:
            setattr(_inside, what, False)
        _tell(what, self, numbers)
        return result

    return given


@harmless
def _tell(what: str, thing: Any, numbers: _Numbers) -> None:
    _course.restored()
    kind = type(thing).__name__
    given = Given(what=what, kind=kind, number=numbers.of(thing))
    _observe(given)


def _load_model(
    made: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    _course.models += 1
    if getattr(_inside, "model", False) or _course.models > _MOST_MODELS:
        return made(self, *args, **kwargs)
    _inside.model = True
    try:
        result = made(self, *args, **kwargs)
    finally:
        _inside.model = False
    _tell_model(self, args[0] if args else kwargs["state_dict"], result)
    return result


@harmless
def _tell_model(model: nn.Module, state: Mapping[str, Any], result: Any) -> None:
    _course.restored()
    lacked = set(getattr(result, "missing_keys", ()))
    strange = set(getattr(result, "unexpected_keys", ()))
    matched = len(state) - len(strange)
    own = state_matching.is_own(model, state)
    others = strange
    if own or not state:
        present = set(state_matching.tensors(model))
        others = _course.names - present
        lacked = lacked or present
    prefix, lacking, explained = "", "", 0
    if lacked:
        prefix, lacking, explained = state_matching.explain(lacked, others)
    _observe(
        Given(
            what="model",
            kind=type(model).__name__,
            number=_modules.of(model),
            matched=matched,
            missing=len(lacked),
            unexpected=len(others),
            prefix=prefix,
            lacking=lacking,
            explained=explained,
            empty=not state,
            own=own,
        )
    )


# --- what is made anew ---


def _made_scheduler(
    made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> None:
    made(self, *args, **kwargs)
    if self not in _born:
        _note_scheduler(self)


@harmless
def _note_scheduler(scheduler: Any) -> None:
    _born[scheduler] = _course.leg + _course.stepped
    number = _schedulers.of(scheduler)
    kind = type(scheduler).__name__
    _observe(Scheduled(kind=kind, number=number))


def _made_scaler(
    made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> None:
    made(self, *args, **kwargs)
    _note_scaler(self)


@harmless
def _note_scaler(scaler: Any) -> None:
    _born[scaler] = _course.leg + _course.stepped
    _scalers.of(scaler)


def _set_epoch(made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    result = made(self, *args, **kwargs)
    _observe_epoch(self)
    return result


@harmless
def _observe_epoch(sampler: Any) -> None:
    if sampler.shuffle and isinstance(sampler.epoch, int):
        length = len(sampler.dataset)
        _observe(Shuffled(epoch=sampler.epoch, seed=sampler.seed, length=length))


# --- steps ---


def _stepping(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Before each step of every optimizer: nearly always there is nothing to do."""
    if _legs.get(optimizer, -1) != _course.leg or _course.draws:
        _tell_step(optimizer)


@harmless
def _tell_step(optimizer: Optimizer) -> None:
    if RECORDER.writer is None:
        return
    rng = exact.of_tensor(torch.get_rng_state())
    if _course.draws:
        _course.draws = False
        _observe(Reached(rng=rng))
    if _legs.get(optimizer, -1) == _course.leg:
        return
    if not _course.stepped:
        _course.draws = _course.stepped = True
    _legs[optimizer] = _course.leg
    mine = [one for one in list(_schedulers.known) if _is_of(one, optimizer)]
    position, schedule, only = _schedule_of(list(filter(_is_new, mine)) or mine)
    made = only is not None and _is_new(only)
    scalers = [one for one in list(_scalers.known) if one.is_enabled() and _is_new(one)]
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    _observe(
        Continued(
            kind=type(optimizer).__name__,
            number=_optimizers.of(optimizer),
            filled=bool(optimizer.state),
            rules=_rules(optimizer),
            lr=number_of(group.get("lr", -1.0)),
            position=position,
            schedule=schedule,
            scheduler=_schedulers.of(only) if made else -1,
            scale=number_of(scale_of(scalers[0])) if len(scalers) == 1 else 0.0,
            rng=rng,
        )
    )
    for one in (*mine, *scalers):
        _born[one] = -1  # from now on it is in use


def _is_of(scheduler: Any, optimizer: Optimizer) -> bool:
    return getattr(scheduler, "optimizer", None) is optimizer


def _is_new(thing: Any) -> bool:
    """Whether a scheduler or a scaler was made since the last step before this leg."""
    return _born.get(thing, -1) == _course.leg


def _schedule_of(schedulers: list[Any]) -> tuple[int, int, Any]:
    """Where the only scheduler stands, its fingerprint and itself."""
    inner = {id(one) for s in schedulers for one in getattr(s, "_schedulers", ())}
    outer = [one for one in schedulers if id(one) not in inner]
    if len(outer) != 1:
        return -1, 0, None
    return *place_of(outer[0].state_dict()), outer[0]


def _rules(optimizer: Optimizer) -> int:
    """Fingerprint of its class and hyper-parameters, without what schedulers change."""
    left_out = {"params", "param_names", "lr", "momentum", "betas"}
    settings = [
        sorted((name, repr(v)) for name, v in group.items() if name not in left_out)
        for group in optimizer.param_groups
    ]
    return exact.of_value([type(optimizer).__name__, settings])


def _observe(observation: Any) -> None:
    _course.notes += 1
    if _course.notes <= _MOST_NOTES:
        RECORDER.observe(observation, call_site(1))


PROBE = Probe(install=install)
