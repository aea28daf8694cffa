"""Implements for the CPU the SyncBatchNorm kernels that torch has for GPUs only.

The module itself stays torch's own, so that its collectives are those of a GPU's run.
The formulas are those of torch 2.13, aten/src/ATen/native/cuda/Normalization.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.recorder import RECORDER

_libraries: list[Library] = []


def install() -> None:
    """Register the kernels at the first forward pass of a SyncBatchNorm."""
    replace(torch.nn.SyncBatchNorm, "forward", _forward)


def _forward(made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if not _libraries:
        RECORDER.substituted("batch-norm")
        _register()
    return made(self, *args, **kwargs)


def _register() -> None:
    library = Library("aten", "IMPL")
    _libraries.append(library)
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        library.impl(kernel.__name__, kernel, "CPU")


def _accurate(tensor: Tensor) -> Tensor:
    """Sums of halves are kept in float32."""
    return tensor.float() if tensor.dtype in {torch.half, torch.bfloat16} else tensor


def _over(tensor: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [n for n in range(tensor.dim()) if n != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of each channel: [channels] each."""
    var, mean = torch.var_mean(_accurate(x), _over(x), correction=0)
    return mean, torch.rsqrt(var + eps)


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Combine the ranks' statistics; `mean` and `invstd` are [ranks, channels]."""
    del x
    weights = counts.to(mean.dtype).view(-1, 1)
    count = weights.sum()
    overall = (mean * weights).sum(0) / count
    squares = (invstd.pow(-2) - eps + (mean - overall).square()) * weights
    var = squares.sum(0) / count
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(overall, alpha=momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(squares.sum(0) / (count - 1) * momentum)
    return overall, torch.rsqrt(var + eps)


def batch_norm_elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """Normalise, scale and shift."""
    del eps
    out = (_accurate(x) - _per_channel(mean, x)) * _per_channel(invstd, x)
    if weight is not None:
        out = out * _per_channel(weight, x)
    if bias is not None:
        out = out + _per_channel(bias, x)
    return _like(out, x)


def _like(out: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(out)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's sums for the gradients: [channels] each."""
    del input_g, weight_g, bias_g
    grad = _accurate(grad)
    total = grad.sum(_over(x))
    centred = (grad * (_accurate(x) - _per_channel(mean, x))).sum(_over(x))
    dtype = total.dtype if weight is None else weight.dtype
    # Copies, for no result of an operator may be another one.
    return (
        total,
        centred,
        (centred * invstd).to(dtype),
        total.to(dtype, copy=True),
    )


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Gradient of the input."""
    number = count.sum().to(mean.dtype)
    slope = invstd.square() * sum_dy_xmu / number
    out = _accurate(grad) - _per_channel(sum_dy / number, x)
    out = out - (_accurate(x) - _per_channel(mean, x)) * _per_channel(slope, x)
    factor = invstd if weight is None else invstd * weight
    return _like(out * _per_channel(factor, x), x)
