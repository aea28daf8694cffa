"""Refuses, as CUDA would, layers and losses of tensors on different devices.

On the CPU they would go through, and the job would break on the first machine with
GPUs: a batch or its labels were never moved, a model or the weights of a loss were left
behind. Only tensors count of whose devices nobody can be in doubt. Tensors without
dimensions may be mixed with any, as in torch.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import _utils as data_utils
from torch.utils.data import dataloader

from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import (
    CPU,
    is_left_behind,
    is_surely_there,
    known_place,
    put,
    state,
)
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_warnings

_LAYERS = ("linear", "conv1d", "conv2d", "conv3d", "embedding", "layer_norm")
_AT_WEIGHT = {"embedding": 1, "layer_norm": 2}
_LOSSES = (
    *("cross_entropy", "nll_loss", "kl_div", "mse_loss", "l1_loss"),
    *("smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)

_MOST_NODES = 20_000
_MOST_DEPTH = 8

_LEAVES = "torch::autograd::AccumulateGrad"
_COPIES = ("CopyBackwards", "CopySlices")  # from any device to any other

_MOVERS = (
    *("torch.nn.parallel.data_parallel", "torch.distributed.fsdp"),
    *("torch.distributed._composable", "deepspeed."),
)
"""Modules whose wrappers move what they are given to the device of their model."""

_WRAPPER = "torch.nn.parallel.distributed"

movers: WeakSet[Any] = WeakSet()
"""Models that move what they are given: those of DDP that were made for one device."""

_replaced: list[tuple[Any, str, Any, Any]] = []


def install() -> None:
    """Replace the functions by ones that refuse."""
    for name in _LAYERS:
        _put(name, _layer(getattr(functional, name), _AT_WEIGHT.get(name, 1)))
    for name in _LOSSES:
        _put(name, _loss(getattr(functional, name)))
    kinds = data_utils.collate.default_collate_fn_map
    collated = kinds.get(Tensor)
    if collated is not None:
        kinds[Tensor] = _collating(collated)
    replace(dataloader._MultiProcessingDataLoaderIter, "_next_data", _from_workers)


def give_back() -> None:
    """Restore torch's own functions for compilers; nothing is refused any more."""
    while _replaced:
        owner, name, made, replacement = _replaced.pop()
        if getattr(owner, name) is replacement:
            setattr(owner, name, made)


def _put(name: str, replacement: Callable[..., Any]) -> None:
    made = getattr(functional, name)
    _replaced.append((functional, name, made, replacement))
    setattr(functional, name, replacement)


# --- what is refused ---


def _layer(made: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Around a function of an input and a weight, which is the argument number `at`."""
    before_weight = at + 1

    @functools.wraps(made)
    def compute(*args: Any, **kwargs: Any) -> Any:
        # Of most inputs, made by the layer before, nobody knows: that is soon seen.
        if (
            state.touched
            and len(args) >= before_weight
            and known_place(args[0]) is not None
        ):
            weight = args[at]
            if is_left_behind(args[0]):
                refuse_if(args[0], is_surely_there(weight))
            elif is_left_behind(weight):
                refuse_if(weight, is_surely_there(args[0]))
        return made(*args, **kwargs)

    unseen_by_warnings(compute)
    return compute


def _loss(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around a function of a prediction, its target, and perhaps weights."""

    @functools.wraps(made)
    def compute(*args: Any, **kwargs: Any) -> Any:
        if state.touched:
            given = [one for one in (*args, *kwargs.values()) if _counts(one)]
            left = next((one for one in given if is_left_behind(one)), None)
            if left is not None:
                refuse_if(left, any(is_on_gpu(one) for one in given))
        return made(*args, **kwargs)

    unseen_by_warnings(compute)
    return compute


def _counts(one: Any) -> bool:
    return isinstance(one, Tensor) and one.dim() > 0


def refuse_if(left: Tensor, other_is_there: bool) -> None:
    """Refuse an operation on a tensor left on the CPU if no wrapper would move it.

    Args:
        left: The tensor that is certainly on the CPU.
        other_is_there: Whether another operand is on a GPU.

    Raises:
        RuntimeError: As torch would on a GPU.
    """
    if other_is_there and left.dim() > 0 and not _is_moved_on_the_way():
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two "
        f"devices, cuda:{state.home} and cpu!"
    )


def _is_moved_on_the_way() -> bool:
    """Whether a wrapper around the model would have moved the tensor.

    What is computed again in a backward pass was perhaps computed inside one.
    """
    if torch._C._current_graph_task_id() != -1:
        return True
    return any(map(_moves, _frames()))


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _moves(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    if name == _WRAPPER:
        return frame.f_locals.get("self") in movers
    return name.startswith(_MOVERS)


# --- where a tensor is for sure ---


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor would be on a GPU, by itself or by what it was made from."""
    if known_place(tensor) is not None:
        return is_surely_there(tensor)
    return type(tensor) is Tensor and _is_made_there(tensor)


def _is_made_there(tensor: Tensor) -> bool:
    """Whether a parameter that it was made of is on a GPU, and no step leads away.

    Operations are done where all that they are given lies, but for copies.
    """
    if state.left_gpu or tensor.grad_fn is None:
        return False
    seen, waiting, found = set[Any](), [tensor.grad_fn], False
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        name = node.name()
        if name == _LEAVES:
            leaf: Tensor = node.variable  # type: ignore[attr-defined]
            found = found or (leaf.dim() > 0 and is_surely_there(leaf))
        elif (
            name in _COPIES or hasattr(node, "_forward_cls") or len(seen) > _MOST_NODES
        ):
            return False  # functions of the user's may do anything
        waiting.extend(next_ for next_, _ in node.next_functions if next_ is not None)
    return found


# --- batches ---


def _collating(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def collate(batch: Any, *args: Any, **kwargs: Any) -> Any:
        together = made(batch, *args, **kwargs)
        if all(map(is_left_behind, batch)):
            put(together, CPU)
        return together

    return collate


def _from_workers(made: Callable[..., Any], self: Any) -> Any:
    """What forked workers have sent lies on the CPU: they cannot use CUDA."""
    batch = made(self)
    if _are_forked(self._workers):
        _leave(batch)
    return batch


@harmless
def _are_forked(workers: list[Any]) -> bool:
    methods = {worker._start_method for worker in workers}
    return {one or multiprocessing.get_start_method() for one in methods} == {"fork"}


@harmless
def _leave(batch: Any, depth: int = 0) -> None:
    if isinstance(batch, Tensor):
        if known_place(batch) is None:
            put(batch, CPU)
    elif depth < _MOST_DEPTH and isinstance(batch, (list, tuple, dict)):
        parts = batch.values() if isinstance(batch, dict) else batch
        for part in parts:
            _leave(part, depth + 1)
