"""Reads from an autograd node over how many elements it takes a mean or a sum."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

MEANS = ("MeanBackward0", "MeanBackward1")
SUMS = ("SumBackward0", "SumBackward1")

PASSING = (
    *("ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "CloneBackward0"),
    *("SqueezeBackward1", "UnsqueezeBackward0", "ReshapeAliasBackward0"),
)
"""Nodes that change no element."""

SCALING = ("MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1")

_MOST_COUNTED = 1 << 20  # elements of a mask, or of labels, that are counted

_PLAIN = frozenset({Tensor, nn.Parameter})

_DEEP = 5  # nodes below a sum, up to a mask or labels


def count_of(node: Any) -> int:
    """How many elements a mean or a sum node reduces."""
    sizes = node._saved_self_sym_sizes
    if not hasattr(node, "_saved_dim"):
        return prod(sizes)
    over = [signed(dimension) for dimension in node._saved_dim]
    return prod(sizes[one] for one in over) if sizes else 1


def signed(number: int) -> int:
    """A saved attribute as a signed number; torch returns it as unsigned."""
    return number - (1 << 64) * (number >= 1 << 63)


def sum_counts(node: Any, inner: Any) -> tuple[float, ...]:
    """Possible element counts of a sum: all, those of a mask, labels, or rows."""
    sizes = node._saved_self_sym_sizes
    count = prod(sizes)
    counts = [float(count), *map(float, sizes[:1])]
    for _ in range(_DEEP):
        if inner is None or count > _MOST_COUNTED:
            break
        name = inner.name()
        if name in SCALING:
            masks = [saved(inner, "self"), saved(inner, "other")]
            counts += [
                float(mask.sum())
                for mask in masks
                if isinstance(mask, Tensor) and mask.is_cpu and not mask.requires_grad
                if mask.numel() == count
            ]
        elif name == "MaskedFillBackward0":
            mask = saved(inner, "mask")
            if isinstance(mask, Tensor) and mask.is_cpu:
                counts.append(float(count - int(mask.expand(tuple(sizes)).sum())))
        elif "NllLoss" in name:
            target = saved(inner, "target")
            skipped = signed(inner._saved_ignore_index)
            if isinstance(target, Tensor) and target.is_cpu:
                counts.append(float((target != skipped).sum()))
            break
        elif name not in (*PASSING, "NegBackward0"):
            break
        inner = next((one for one, _ in inner.next_functions if one is not None), None)
    return tuple(counts)


def saved(node: Any, name: str) -> Any:
    """A tensor or value that a node saved for backward; None if not to be read.

    A hook would have to unpack it; the memory of a gathered parameter was given back,
    as FSDP does, and to read there ends the process; to read a DTensor or another
    kind of tensor may run anything, collectives too.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", None) is not None:
        return None
    try:
        found = getattr(node, f"_saved_{name}")
    except RuntimeError:  # it was changed meanwhile, or is freed
        return None
    if isinstance(found, Tensor) and not _can_be_read(found):
        return None
    return found


def _can_be_read(tensor: Tensor) -> bool:
    if type(tensor) not in _PLAIN or tensor.is_meta:
        return False
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    return tensor.untyped_storage().nbytes() > 0


def shape(edge: tuple[Any, int]) -> tuple[int, ...]:
    """The shape of the output that an edge of the autograd graph refers to."""
    node, at = edge
    return tuple(node._input_metadata[at].shape)
