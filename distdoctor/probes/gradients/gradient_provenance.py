"""Finds which parameters' gradients a tensor to be sent carries, and how changed.

A tensor is the gradient itself, memory that gradients lie in, a copy of one, or several
one after the other.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from distdoctor.model.observations.gradients import NO_GRADIENT
from distdoctor.probes.fingerprints.sampled import print_of

_SAMPLE = 64  # elements of a tensor that are compared

_FEWEST = 4  # elements by which a multiple can be told

_UNLIKE = 0.02  # what is left, relative to what is sent; a float16 rounds by 0.0005

_MOST_RUNS = 4  # of parameters that a flat tensor is compared with


@dataclass(slots=True)
class Own:
    """One parameter's own gradient after backward, and what of it was sent."""

    reference: weakref.ref[Tensor]
    norm: Tensor
    sample: Tensor
    sent: Tensor | None = None  # a norm
    call: int = 0  # of the rank's, that carried it; 0: not recognised for certain
    factor: float = 0.0
    early: bool = True  # that was done before the step
    before: Tensor | None = None  # elements of the parameter before the step
    used: Tensor | None = None  # likewise of its gradient
    settled: int = NO_GRADIENT  # print of what the step itself made of its gradient

    @property
    def parameter(self) -> Tensor:
        """The parameter; an empty tensor if it is gone."""
        alive = self.reference()
        return torch.empty(0) if alive is None else alive


class Part(NamedTuple):
    """What a tensor carries of one parameter's gradient.

    Attributes:
        own: The parameter's.
        tensor: Its part of the tensor.
        is_sure: It is the gradient's memory, or a multiple of no other's values.
    """

    own: Own
    tensor: Tensor
    is_sure: bool


def parts(tensor: Tensor, all_own: Sequence[Own]) -> list[Part]:
    """The parameters whose gradients a tensor carries, with their parts of it."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    inside = [
        Part(own, gradient, is_sure=True)
        for own in all_own
        if (gradient := own.parameter.grad) is not None
        and is_readable(gradient)
        and begin <= gradient.data_ptr() < begin + size
    ]
    if inside:
        return inside
    count = tensor.numel()
    of_size = [own for own in all_own if own.parameter.numel() == count]
    memory = tensor.untyped_storage().data_ptr()
    if any(_memory(own.parameter) == memory for own in all_own):
        return []  # weights
    if of_size:
        now = sample(detached(tensor))
        alike = [own for own in of_size if factor(own.sample, now)]
        if alike:
            is_sure = len(alike) == 1 and count >= _FEWEST
            return [Part(alike[0], tensor, is_sure)]
        waiting = [own for own in of_size if own.sent is None]
        if waiting and count >= _FEWEST:
            return [Part(waiting[0], tensor, is_sure=False)]
        return []
    if tensor.is_contiguous():
        for order in (all_own, all_own[::-1]):
            runs = [_flat_parts(tensor, run) for run in _runs(order, count)]
            if fitting := [run for run in runs if run]:
                is_sure = len(fitting) == 1
                return [Part(own, part, is_sure) for own, part in fitting[0]]
    return []


def factor(own: Tensor, now: Tensor) -> float:
    """The factor between two samples; 0.0 if one is no multiple of the other."""
    if own.shape != now.shape or own.numel() < 1:
        return 0.0
    with torch.no_grad():
        a, b = own.double(), now.to(own.device).double()
        size = float(torch.dot(a, a))
        if not size or not math.isfinite(size):
            return 0.0
        factor = float(torch.dot(a, b)) / size
        rest = float(torch.linalg.vector_norm(b - factor * a))
        whole = float(torch.linalg.vector_norm(b))
    return factor if math.isfinite(whole) and rest <= _UNLIKE * whole else 0.0


def settle(own: Own) -> None:
    """Take the gradient as the step left it, if the step itself changed it.

    An optimizer that averages gradients itself starts from those of this rank alone.
    """
    gradient = own.parameter.grad
    if own.used is None or gradient is None or not is_readable(gradient):
        return
    now = sample(gradient.detach())
    if now.shape == own.used.shape and bool(now.any()) and not now.equal(own.used):
        own.used = now.clone()
        own.settled = print_of(gradient)


def moved(own: Own) -> float:
    """The multiple of its gradient that a step took off a parameter; 0.0: none."""
    if own.before is None or own.used is None or own.used.numel() < _FEWEST:
        return 0.0
    return -factor(own.used, sample(own.parameter.detach()) - own.before)


def sample(tensor: Tensor) -> Tensor:
    """At most 64 elements of a tensor, evenly spaced."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, -(-flat.numel() // _SAMPLE))]


def is_readable(tensor: Tensor) -> bool:
    """Whether a tensor is a plain floating-point one, with values in memory."""
    return (
        type(tensor) in {Tensor, torch.nn.Parameter}
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and not tensor.is_meta
    )


def detached(tensor: Tensor | None) -> Tensor:
    """A gradient that is known to exist, detached from its graph."""
    assert tensor is not None
    return tensor.detach()


def _runs(all_own: Sequence[Own], count: int) -> Iterator[Sequence[Own]]:
    """Parameters that follow each other and have so many elements together."""
    begin = size = found = 0
    for end, own in enumerate(all_own, start=1):
        size += own.parameter.numel()
        while size > count:
            size -= all_own[begin].parameter.numel()
            begin += 1
        if size == count and found < _MOST_RUNS:
            found += 1
            yield all_own[begin:end]


def _flat_parts(tensor: Tensor, all_own: Sequence[Own]) -> list[tuple[Own, Tensor]]:
    """Gradients one after the other, if a tensor has them in that order."""
    flat, at, found = tensor.detach().reshape(-1), 0, []
    for own in all_own:
        size = own.parameter.numel()
        found.append((own, flat[at : at + size]))
        at += size
    large = [one for one in found if one[0].parameter.numel() >= _FEWEST]
    alike = [factor(own.sample, sample(part)) for own, part in large]
    return found if any(alike) else []


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
