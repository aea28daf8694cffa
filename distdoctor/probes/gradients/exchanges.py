"""Counts what ranks exchange between optimizer steps: gradients, parameters, others.

Every collective counts with its elements. What it carries is looked at before a few
steps only, by the memory of its tensors or, for copies, by their first element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.modules._functions import SyncBatchNorm

from distdoctor.model.layers import LAYERS
from distdoctor.model.observations.gradients import Within
from distdoctor.probes.call_sites import call_site, frame_above
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.frame_variables import Names
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_OF_WRAPPERS = (LAYERS.index("ddp"), LAYERS.index("checkpoint"))

_OF_MODELS = (0, LAYERS.index("dtensor"))

_MOST_LOOKS = 64  # calls that are looked at between two steps

_MOST_COPIES = 4  # of them, by their elements, which a GPU has to be waited for

_FIGURES = 16  # elements of a metric

_MOST_PLACES = 8  # lines within forward passes that are told between two steps

_CALLING = nn.Module._call_impl.__code__

_NORMALISING = SyncBatchNorm.forward.__code__  # exchanges statistics of a whole batch

Weights = Callable[[], Iterable[Tensor]]


class Exchanges:
    """Numbers of elements that this process exchanged by collectives, by content.

    Attributes:
        looking: Whether the content of the next collectives is examined.
        moved: All elements, except by wrappers at construction and before forward.
        reduced: Elements exchanged during backward passes.
        mixed: Elements of parameters.
        unclear: Elements not recognised as parameters or gradients.
        watchers: Called with the tensors of each call that is looked at, before it is
            made.
    """

    def __init__(self) -> None:
        self.looking = True
        self.watchers: list[Callable[[Sequence[Tensor]], object]] = []
        self.moved = self.reduced = self.mixed = self.unclear = 0
        self.members = 1
        self._looks = self._copies = 0
        self._within: set[str] = set()
        self._copy = "else"  # what the last copy was of
        self._weights: Weights = tuple

    def look(self, weights: Weights) -> None:
        """Examine the content of collectives up to the next optimizer step.

        Args:
            weights: Gives the parameters that are trained.
        """
        self.looking, self._weights = True, weights
        self._looks = self._copies = 0
        self._within.clear()

    def count(
        self, elements: int, argument: Any, layer: int, in_backward: bool
    ) -> None:
        """Called before each collective; on the hot path."""
        if layer in _OF_WRAPPERS:
            return
        self.moved += elements
        if in_backward:
            self.reduced += elements
        elif layer:  # FSDP, DTensor, a pipeline
            self.unclear += elements
        elif self.looking and elements > 1 and self._looks < _MOST_LOOKS:
            self._look(elements, argument)
        if not self.looking or elements <= _FIGURES or in_backward:
            return
        if layer in _OF_MODELS and len(self._within) < _MOST_PLACES:
            self._place()

    @harmless
    def _place(self) -> None:
        """Tell where in the user's code the call is, if a model computes there."""
        if is_capturing() or not is_within():
            return
        site = call_site(3)
        if site not in self._within:
            self._within.add(site)
            RECORDER.observe(Within(), site)

    @harmless
    def _look(self, elements: int, argument: Any) -> None:
        if is_capturing():
            return
        self._looks += 1
        tensors = [tensor for tensor in _flat(argument) if tensor.is_floating_point()]
        for watcher in self.watchers:
            watcher(tensors)
        kinds = [self._kind(tensor) for tensor in tensors]
        if "weight" in kinds:
            self.mixed += elements
        elif "else" in kinds:
            self.unclear += elements

    def _kind(self, tensor: Tensor) -> str:
        """What a tensor is: "weight", "gradient", or "else"."""
        weights = [one for one in self._weights() if type(one.data) is Tensor]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        memory = _memory(tensor)
        if memory in set(map(_memory, weights)):
            return "weight"
        if memory in set(map(_memory, gradients)) or tensor.numel() < 2:
            return "gradient"
        if self._copies < _MOST_COPIES:
            self._copies += 1
            self._copy = self._copied(tensor, weights, gradients)
        return self._copy

    def _copied(
        self, tensor: Tensor, weights: list[Tensor], gradients: list[Tensor]
    ) -> str:
        """What a tensor is a copy of, which may be divided by the number of ranks."""
        first, members = _first(tensor), self.members
        if first == 0.0:
            return "gradient"
        if any(_first(weight) == first for weight in weights):
            return "weight"
        known = set(map(_first, gradients))
        found = known & {first, first * members, first / members}
        return "gradient" if found else "else"


def is_within() -> bool:
    """Whether the call is part of a trained model's differentiable computation.

    What an autograd function does is so, though gradients are off within it.
    """
    frame = frame_above(1)
    differentiable = torch.is_grad_enabled()
    outermost: object = None
    while frame is not None:
        code = frame.f_code
        if code is _CALLING:
            outermost = frame.f_locals.get("self")
        elif code is _NORMALISING:
            return False
        elif not differentiable and outermost is None and code.co_argcount:
            with Names(frame) as value:
                differentiable = isinstance(value(code.co_varnames[0]), FunctionCtx)
        frame = frame.f_back
    return (
        differentiable
        and isinstance(outermost, nn.Module)
        and any(parameter.requires_grad for parameter in outermost.parameters())
    )


def _memory(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return -1
    return tensor.untyped_storage().data_ptr()


def _first(tensor: Tensor) -> float:
    if tensor.layout is not torch.strided:  # only gradients are sparse
        return 0.0
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)[:1]
        return float(flat.item()) if flat.numel() else 0.0


def _flat(argument: Any) -> Iterator[Tensor]:
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _flat(part)


EXCHANGES = Exchanges()
