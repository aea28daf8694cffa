"""Finds optimizer steps that are lost to rounding in half-precision parameters.

It looks only at steps that are sampled anyway, and only at some elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from distdoctor.model.observations.amp import HalfStep
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import HALVES, Optimizer
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 32  # parameters that are looked at

_SAMPLE = 2048  # elements of each

_ALIKE = 0.999  # of the elements that a copy in float32 must round to

_MOST_KEPT = 4096  # tensors that are searched for copies


class _Before:
    """A sample of parameter elements, taken right before an optimizer step."""

    def __init__(self, known: Optimizer, chosen: Sequence[Tensor], count: int) -> None:
        self.known, self.count = known, count
        self.parameters = list(chosen)
        self.weights = [_sample(one).clone() for one in chosen]
        self.given = [_is_given(one) for one in chosen]
        self.drawn = _drawn(chosen[0].device)


_before: _Before | None = None


class _Since:
    """A sample of parameter elements, as an earlier optimizer step left them.

    Attributes:
        still: Those that had a gradient since at all steps that were looked at, and
            were moved by none of those.
    """

    def __init__(self, step: int, before: _Before) -> None:
        self.step = step
        self.held = tuple(map(id, before.parameters))
        self.weights = [_sample(one).clone() for one in before.parameters]
        self.still = before.given


_MOST_OPTIMIZERS = 64  # whose elements are remembered

_APART = 3  # steps, at the least, that an element has not moved in

_since: dict[int, _Since] = {}
"""By the number of an optimizer."""


def looking(known: Optimizer) -> None:
    """Called before a sampled optimizer step: take the elements."""
    global _before
    _before = None
    halves = [one for one in known.parameters if one.dtype in HALVES]
    if not halves:
        return
    dtype = halves[0].dtype
    rates = _settings(known, "lr")
    trained = [
        one
        for one in halves
        if one.dtype is dtype and _is_readable(one) and rates.get(id(one), 0.0) > 0.0
    ]
    if trained:
        chosen = trained[:: max(1, -(-len(trained) // _MOST))]
        _before = _Before(known, chosen, len(trained))


def stepped(optimizer: torch.optim.Optimizer, known: Optimizer) -> None:
    """Called after an optimizer step: compare the elements taken before."""
    global _before
    before, _before = _before, None
    if before is None or before.known is not known:
        return
    chosen = before.parameters
    own = not type(optimizer).step.__module__.startswith("torch.optim.")
    given, lost, faded = _counts(before, optimizer)
    since, stayed = _stayed(before, known.steps)
    held = set(map(id, chosen))
    compensated = own and (
        before.drawn != _drawn(chosen[0].device)
        or _has_copies(optimizer, chosen)
        or _are_held_elsewhere(known, before)
    )
    rates, epsilons = _settings(known, "lr"), _settings(known, "eps")
    RECORDER.observe(
        HalfStep(
            optimizer=known.number,
            step=known.steps,
            dtype=str(chosen[0].dtype).removeprefix("torch."),
            count=before.count,
            rate=max(rates[one] for one in held),
            epsilon=min((epsilons[one] for one in held & epsilons.keys()), default=0.0),
            own=own,
            stateful=any(
                kept.dtype is one.dtype
                for one in chosen
                for kept in _kept(optimizer, one)
            ),
            compensated=compensated,
            given=given,
            lost=lost,
            since=since,
            stayed=stayed,
            faded=faded,
        ),
        call_site(4),
    )


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _before
    _before = None
    _since.clear()


# --- before and after ---


def _counts(before: _Before, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """Elements that had a gradient, that did not change, whose state is 0."""
    parts = []
    with torch.no_grad():
        triples = zip(before.parameters, before.weights, before.given, strict=True)
        for parameter, weights, given in triples:
            if weights.shape != (now := _sample(parameter)).shape:
                continue
            lost = given & (now == weights)
            faded = torch.zeros_like(given)
            for kept in _kept(optimizer, parameter):
                if kept.dtype is parameter.dtype:
                    faded |= given & (_sample(kept) == 0)
            parts.append(torch.stack([one.sum() for one in (given, lost, faded)]))
        if not parts:
            return 0, 0, 0
        given, lost, faded = torch.stack(parts).sum(0).tolist()
    return given, lost, faded


def _stayed(before: _Before, step: int) -> tuple[int, int]:
    """An earlier step, and how many elements are where that has left them.

    Their gradients asked them to move, and each single step was rounded away.
    """
    number = before.known.number
    earlier = _since.get(number)
    if earlier is None or earlier.held != tuple(map(id, before.parameters)):
        if number in _since or len(_since) < _MOST_OPTIMIZERS:
            _since[number] = _Since(step, before)
        return 0, 0
    now = [_sample(one) for one in before.parameters]
    with torch.no_grad():
        earlier.still = [
            still & given & (new == old) & (new == first)
            for still, given, new, old, first in zip(
                *(earlier.still, before.given, now, before.weights, earlier.weights),
                strict=True,
            )
        ]
        if step - earlier.step < _APART:
            return 0, 0
        _since[number] = _Since(step, before)
        return earlier.step, int(sum(one.sum() for one in earlier.still))


def _is_given(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    sample = _sample(gradient)
    return (sample != 0) & sample.isfinite()


def _is_readable(parameter: Tensor) -> bool:
    gradient = parameter.grad
    return (
        gradient is not None
        and gradient.layout is torch.strided
        and not (parameter.is_meta or gradient.is_meta)
        and gradient.shape == parameter.shape
        and parameter.numel() > 0
    )


def _sample(tensor: Tensor) -> Tensor:
    """Some elements, evenly spaced: at most [2048]."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))]


def _settings(known: Optimizer, name: str) -> dict[int, float]:
    """A setting by the `id` of each parameter that has it."""
    optimizer = known.optimizer
    groups = [] if optimizer is None else optimizer.param_groups
    found: dict[int, float] = {}
    for group in groups:
        value = group.get(name)
        if isinstance(value, int | float | Tensor):
            found |= dict.fromkeys(map(id, group["params"]), float(value))
    return found


def _kept(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[Tensor]:
    """Tensors that an optimizer keeps for a parameter, element by element."""
    for kept in optimizer.state.get(parameter, {}).values():
        if isinstance(kept, Tensor) and kept.shape == parameter.shape:
            yield kept


# --- what own optimizers do about rounding ---


def _drawn(device: torch.device) -> Any:
    """Where the generator stands that a step would round by."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0].get_offset()
    return torch.default_generator.get_state().tolist()


def _has_copies(optimizer: torch.optim.Optimizer, chosen: Sequence[Tensor]) -> bool:
    """Whether an optimizer keeps its parameters in float32, or what rounding takes."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for kept in _tensors(optimizer):
        by_shape.setdefault(kept.shape, []).append(kept)
    return any(
        _completes(kept, parameter)
        for parameter in chosen
        for kept in by_shape.get(parameter.shape, [])
        if kept is not parameter
    )


def _tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All tensors that an optimizer has, but for its parameters and their gradients."""
    waiting: list[Any] = [value for _, value in sorted(vars(optimizer).items())]
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for count, one in enumerate(waiting):
        if count >= _MOST_KEPT:
            break
        if isinstance(one, Tensor):
            if id(one) not in known:
                yield one
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)


def _completes(kept: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor is a parameter in float32, or the rest of its rounding."""
    if not kept.is_floating_point() or kept.is_meta or kept.device != parameter.device:
        return False
    with torch.no_grad():
        weights, values = _sample(parameter), _sample(kept)
        if kept.dtype not in HALVES:
            alike = (values.to(weights.dtype) == weights).float().mean()
            if float(alike) >= _ALIKE:
                return True
        step = weights.float().abs() * 2 * torch.finfo(weights.dtype).eps
        inside = (values.float().abs() <= step) | (values == 0)
        return bool(inside.all()) and bool(values.any())


def _are_held_elsewhere(known: Optimizer, before: _Before) -> bool:
    """Whether another optimizer holds as many elements in float32."""
    shapes = {one.shape for one in before.parameters}
    return any(
        shapes <= {one.shape for one in other.held() if one.dtype not in HALVES}
        for other in optimizers.every()
        if other is not known
    )


PROBE = Probe(reset=reset)
