"""Computes matrix products under autocast in float32 and rounds, as tensor cores do.

A CPU without instructions for 16-bit floats multiplies them some 40 times slower than
float32, so that a job for mixed precision would not reach its first step in time. GPUs
multiply 16-bit numbers and add in float32; so does this: what goes in is rounded to 16
bits, and so is what comes out, forwards and backwards.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

_PRODUCTS = (
    *("conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm"),
    "scaled_dot_product_attention",
)
"""Source: the list of what autocast lowers on the CPU (torch 2.13,
aten/src/ATen/autocast_mode.cpp), less recurrent layers."""

_KEY = "AutocastCPU"
_LOWERED = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def install() -> torch.library.Library:
    """Register the kernels; they are kept, as they go when their library goes."""
    make: Callable[..., torch.library.Library] = torch.library.Library
    library = make("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that a kernel is replaced
        for name in _PRODUCTS:
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                operator = getattr(packet, overload)
                if "out" not in overload and "dtype" not in overload:
                    replace: Callable[..., None] = library.impl
                    replace(operator, _rounded(operator), _KEY)
    return library


def _rounded(operator: Callable[..., Any]) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def compute(*args: Any, **kwargs: Any) -> Any:
        lower = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            given = [_round(argument, lower) for argument in args]
            named = {name: _round(value, lower) for name, value in kwargs.items()}
            result = operator(*given, **named)
            return result.to(lower) if result.dtype is torch.float32 else result

    return compute


def _round(argument: Any, lower: torch.dtype) -> Any:
    if isinstance(argument, torch.Tensor) and argument.dtype in _LOWERED:
        return argument.to(lower).to(torch.float32)
    return argument
