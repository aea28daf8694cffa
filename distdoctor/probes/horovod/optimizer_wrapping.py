"""Watches Horovod's optimizer: what it is made of, and what happens to its gradients.

In backward it gives each gradient to Horovod as soon as it is there, which averages it
in place while the program goes on; `step` or `synchronize` waits for all. What changes
a gradient meanwhile changes it before or after the averaging, as it happens.

Source: Horovod 0.28.1, torch/optimizer.py and torch/mpi_ops_v2.cc, and measured:
Horovod's own writes do not change the version that torch keeps of a tensor on the CPU;
those of one on a GPU do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from distdoctor.model.observations.horovod import (
    ChangedInFlight,
    OptimizerWrapped,
    ReducedTwice,
    StateDropped,
    UnexpectedPass,
)
from distdoctor.probes import gpu_emulation
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.gradients.gradient_samples import is_due
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod.named_operations import REDUCTIONS
from distdoctor.probes.optimizer_step import backward_hooks, call_hooks, optimizers
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.optimizer_step.step_protocol import PROTOCOL
from distdoctor.probes.optimizer_step.true_steps import before_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_FOLLOWED = 2_000  # parameters of an optimizer

_MOST_STATES = 64  # parameters whose state is looked at


class _Wrapped:
    """One optimizer of Horovod's, and what is known of it.

    Attributes:
        site: The line that made it.
        state: Of the optimizer it was made of: entries, steps by its own count, and
            whether these were loaded; None: it had none, or has been dealt with.
        in_flight: Parameters whose gradients Horovod has, with where each gradient
            lies, and its version, when the backward pass was over.
        touch: What was called that changes gradients since then: its name, line, norm
            before and bound.
        synchronized: How often gradients were reduced since the last step.
        unexpected: Whether a backward pass began that it may refuse.
    """

    __slots__ = ("in_flight", "site", "state", "synchronized", "touch", "unexpected")

    def __init__(self, site: str, state: tuple[int, float, bool] | None) -> None:
        self.site, self.state = site, state
        self.in_flight: dict[int, tuple[ref[Tensor], int, int]] = {}
        self.touch: tuple[str, str, Any, float] | None = None
        self.synchronized = 0
        self.unexpected = False


_wrapped: WeakKeyDictionary[Optimizer, _Wrapped] = WeakKeyDictionary()
_loaded: WeakSet[Optimizer] = WeakSet()
_stepped: WeakSet[Optimizer] = WeakSet()


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _wrapped.clear()
    _loaded.clear()
    _stepped.clear()


def _watch_optimizer(module: ModuleType) -> None:
    """Wrap the function that makes the optimizer, and the method that waits."""
    space = module.__dict__
    made = space["DistributedOptimizer"]

    @functools.wraps(made)
    def distributed_optimizer(*args: Any, **kwargs: Any) -> Any:
        base = args[0] if args else kwargs.get("optimizer")
        before = _state_of(base)
        result = made(*args, **kwargs)
        _made(result, base, before)
        return result

    module.__dict__["DistributedOptimizer"] = distributed_optimizer
    for name in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        kind = space.get(name)
        if kind is not None:
            _put_around(kind, "synchronize", _waits, harmless(PROTOCOL.exchanged))
            _put_around(kind, "zero_grad", _clears, _nothing)


def _nothing(_optimizer: Any) -> None:
    """Nobody wants to know of this moment."""


def _put_around(
    kind: type,
    name: str,
    before: Callable[[Any], object],
    after: Callable[[Any], object],
) -> None:
    """Have functions called around a method; methods are copied for each optimizer."""
    made = vars(kind).get(name)
    if made is None:
        return

    @functools.wraps(made)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self)
        result = made(self, *args, **kwargs)
        after(self)
        return result

    setattr(kind, name, method)


# --- what it is made of ---


@harmless
def _state_of(base: Any) -> tuple[int, float, bool] | None:
    if not isinstance(base, Optimizer):
        return None
    entries, steps = _looked_at(base)
    if not (base in _loaded or base in _stepped or steps > 1):
        # `broadcast_optimizer_state` made it by a step of no gradient: with weight
        # decay, that leaves a momentum which is not zero.
        return None
    return (entries, steps, base in _loaded) if entries else None


def _looked_at(optimizer: Optimizer) -> tuple[int, float]:
    """Parameters that have a state that is not zero, and the largest step in them."""
    count, step = 0, -1.0
    for held in list(optimizer.state.values())[:_MOST_STATES]:
        if not isinstance(held, dict):
            continue
        at = held.get("step", -1)
        at = float(at) if isinstance(at, int | float | Tensor) else -1.0
        step = max(step, at)
        count += any(
            isinstance(one, Tensor) and one.numel() > 0 and bool(one.any())
            for name, one in held.items()
            if name != "step"
        )
    return count, step


@harmless
def _made(optimizer: Any, base: Any, before: tuple[int, float, bool] | None) -> None:
    if not isinstance(optimizer, Optimizer) or RECORDER.writer is None:
        return
    site = call_site(3)
    if base is optimizer:
        before = None
    _wrapped[optimizer] = _Wrapped(site, before)
    known = optimizers.of(optimizer)
    if known is None:
        return
    RECORDER.observe(
        OptimizerWrapped(
            optimizer=known.number,
            passes=int(getattr(optimizer, "backward_passes_per_step", 1)),
            parameters=sum(len(group["params"]) for group in optimizer.param_groups),
            op=_op_of(optimizer),
        ),
        site,
    )


def _op_of(optimizer: Any) -> str:
    return REDUCTIONS.get(getattr(optimizer, "op", 2), "")


def held_by_name(name: str) -> tuple[int, int]:
    """Who reduces a gradient by a name.

    Args:
        name: As given to Horovod.

    Returns:
        How many optimizers of Horovod's do, and how many parameters they call so.
    """
    held = [
        id(parameter)
        for optimizer in list(_wrapped)
        for parameter, given in getattr(optimizer, "_parameter_names", {}).items()
        if given == name
    ]
    return len(held), len(set(held))


def _load(made: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    result = made(self, *args, **kwargs)
    _loaded.add(self)
    if (one := _wrapped.get(self)) is not None:
        one.state = None
    return result


@harmless
def _stepping(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Called before a step: what became of the state that was there before?"""
    _stepped.add(optimizer)
    one = _wrapped.get(optimizer)
    if one is None:
        return
    one.in_flight.clear()
    one.touch, one.synchronized = None, 0
    if one.state is None:
        return
    (entries, steps, loaded), one.state = one.state, None
    now, step = _looked_at(optimizer)
    known = optimizers.of(optimizer)
    # `broadcast_optimizer_state` makes a first step of no gradient where it is empty.
    if known is None or now or step > max(1.0, steps):
        return
    RECORDER.observe(
        StateDropped(
            optimizer=known.number, entries=entries, step=steps, loaded=loaded
        ),
        one.site,
    )


# --- what happens to its gradients ---


@harmless
def _begun(_args: Any) -> None:
    """Called before a backward pass: Horovod may have the last one's gradients yet."""
    if not _wrapped:
        return  # as in most jobs
    for optimizer, one in list(_wrapped.items()):
        if not one.unexpected and _is_complete(optimizer):
            one.unexpected = True  # told once
            _tell_unexpected(optimizer, cleared=False)


@harmless
def _clears(optimizer: Any) -> None:
    """Called before an optimizer clears gradients."""
    one = _wrapped.get(optimizer)
    if one is not None and getattr(optimizer, "_handles", None):
        _tell_unexpected(optimizer, cleared=True)


def _is_complete(optimizer: Any) -> bool:
    """Whether Horovod has been given a gradient for which it expects no other one."""
    delay = getattr(optimizer, "_allreduce_delay", {})
    handles = getattr(optimizer, "_handles", {})
    return any(delay.get(one, 1) <= 0 for one in _parameters(handles))


def _tell_unexpected(optimizer: Any, *, cleared: bool) -> None:
    known = optimizers.of(optimizer)
    if known is not None and RECORDER.writer is not None:
        passes = int(getattr(optimizer, "backward_passes_per_step", 1))
        found = UnexpectedPass(optimizer=known.number, passes=passes, cleared=cleared)
        RECORDER.observe(found, call_site(4))


def _parameters(handles: Any) -> Iterator[Tensor]:
    """The parameters whose gradients Horovod has."""
    for key, (handle, _) in handles.items():
        if handle is not None:
            yield from key if isinstance(key, tuple) else (key,)


@harmless
def _passed() -> None:
    """Called after a backward pass."""
    if not _wrapped:
        return
    for optimizer, one in list(_wrapped.items()):
        if not is_due(_steps(optimizer) + 1):
            continue
        for parameter in _parameters(getattr(optimizer, "_handles", {})):
            number, gradient = id(parameter), parameter.grad
            if number in one.in_flight or len(one.in_flight) >= _MOST_FOLLOWED:
                continue
            if gradient is not None and gradient.layout is torch.strided:
                state = gradient.data_ptr(), gradient._version
                one.in_flight[number] = ref(parameter), *state


def _steps(optimizer: Any) -> int:
    known = optimizers.of(optimizer)
    return 0 if known is None else known.steps


def _touched(parameters: Any, how: str, norm: Any, bound: float) -> None:
    given = {id(parameter) for parameter in parameters}
    for one in _wrapped.values():
        if one.touch is None and given & one.in_flight.keys():
            one.touch = how, call_site(4), norm, bound


def _clipped(this: Clipping) -> None:
    _touched(this.parameters, "clip", this.norm, float(this.bound))


def _unscaled(_scaler: Any, optimizer: Any) -> None:
    held = [one for group in optimizer.param_groups for one in group["params"]]
    _touched(held, "unscale", None, 0.0)


@harmless
def _waits(optimizer: Any) -> None:
    """Called before an optimizer waits for its gradients."""
    one, known = _wrapped.get(optimizer), optimizers.of(optimizer)
    if one is None or known is None or RECORDER.writer is None:
        return
    PROTOCOL.averaging(optimizer)
    one.synchronized += 1
    step = known.steps + 1
    if one.synchronized == 2 and is_due(step):
        found = ReducedTwice(optimizer=known.number, step=step, op=_op_of(optimizer))
        RECORDER.observe(found, call_site(3))
    touched = one.touch is not None
    changed = sum(_is_changed(*state, touched) for state in one.in_flight.values())
    count, one.in_flight = len(one.in_flight), {}
    if not changed:
        return
    how, site, norm, bound = one.touch or ("", call_site(3), None, 0.0)
    RECORDER.observe(
        ChangedInFlight(
            optimizer=known.number,
            step=step,
            count=changed,
            of=count,
            how=how,
            norm=_number(norm),
            bound=bound if math.isfinite(bound) else 0.0,
        ),
        site,
    )


def _is_changed(
    parameter: ref[Tensor], pointer: int, version: int, touched: bool
) -> bool:
    """Whether somebody but Horovod has changed a gradient since it was looked at.

    Args:
        parameter: Whose gradient it is.
        pointer: Where it lay.
        version: That it had.
        touched: A function was called with it that changes gradients.
    """
    alive = parameter()
    if alive is None:
        return False
    gradient = alive.grad
    if gradient is None or gradient.layout is not torch.strided:
        return True
    # What Horovod takes for one on a GPU it copies there and back: one change.
    on_gpu = gradient.is_cuda or gpu_emulation.is_in_place()
    of_horovod = on_gpu and not touched
    changes = gradient._version - version
    return changes > of_horovod or gradient.data_ptr() != pointer


def _number(norm: Any) -> float:
    found = float(norm) if isinstance(norm, Tensor) else 0.0
    return found if math.isfinite(found) else 0.0


def _install() -> None:
    replace(Optimizer, "load_state_dict", _load)
    backward_hooks.watch(begin=_begun, end=_passed)
    clip_hooks.watch(end=_clipped)
    call_hooks.tell(CALL_HOOKS.unscaled, _unscaled)
    before_steps(_stepping)


PROBE = Probe(
    install=_install, imports={"horovod.torch.optimizer": _watch_optimizer}, reset=reset
)
