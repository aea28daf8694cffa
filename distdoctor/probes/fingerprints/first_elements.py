"""Reads the first element of a tensor where it lies, for far less than torch asks.

Measured: 0.9 µs; `tensor.reshape(-1)[0].item()` takes 5 µs and more.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probes.readability import lies_on_cpu

_PLAIN = (Tensor, nn.Parameter)  # and nothing that only looks like one

_CELLS: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.float16: ctypes.c_uint16,  # its bits do to see that it is another
    torch.bfloat16: ctypes.c_uint16,
}

IS_NUMBER = frozenset({torch.float32, torch.float64})
"""Dtypes whose cells hold the element itself, and not its bits."""


def cell_of(tensor: Tensor) -> Any:
    """The memory of the first element, whose `value` is what it holds at present.

    Args:
        tensor: Any.

    Returns:
        A number of `ctypes`; None if the tensor cannot be read so: it is not on the
        CPU, not a plain one, empty, of another dtype, or its memory was given back. It
        must not be used longer than the tensor lives and stays where it is.
    """
    if type(tensor) not in _PLAIN or not lies_on_cpu(tensor):
        return None
    kind = _CELLS.get(tensor.dtype)
    if kind is None or tensor.layout is not torch.strided or not tensor.numel():
        return None
    # FSDP gives memory back and leaves the tensor.
    if tensor.untyped_storage().size() <= tensor.storage_offset():
        return None
    return kind.from_address(tensor.data_ptr())
