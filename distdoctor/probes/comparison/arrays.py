"""Tensors as numpy's arrays."""

from __future__ import annotations

from typing import Any

import torch

from distdoctor.probes.fingerprints import exact


def array_of(tensor: torch.Tensor) -> Any:
    """The values of this rank's part of a tensor; None if it has none to be read.

    Halves become single precision, and complex numbers pairs. The memory may be the
    tensor's own.
    """
    here = exact.local(tensor.detach())
    if here.layout is not torch.strided or here.is_meta or here.is_quantized:
        return None
    if here.is_complex():
        here = torch.view_as_real(here.resolve_conj())
    if here.dtype in {torch.float16, torch.bfloat16} or here.dtype.itemsize < 1:
        here = here.float()
    return here.cpu().contiguous().numpy()
