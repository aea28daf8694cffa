"""Compares tensors by a sample of their elements, evenly spaced."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distdoctor.model.observations.gradients import NO_GRADIENT, NOT_FINITE, NOT_READ
from distdoctor.probes.fingerprints import exact

_SAMPLE = 65_536  # elements of a tensor that are looked at

_PROJECTED = 4096  # likewise, for a linear function of them


def print_of(tensor: Tensor | None) -> int:
    """A fingerprint, or why there is none; see `model.observations.gradients`."""
    if tensor is None:
        return NO_GRADIENT
    sample = _sample(tensor)
    return NOT_READ if sample is None else exact.of_tensor(sample)


def norm_of(tensor: Tensor | None) -> float:
    """A tensor's norm; 0.0 if there is no tensor, or it cannot be read."""
    sample = None if tensor is None else _sample(tensor)
    if sample is None:
        return 0.0
    with torch.no_grad():
        norm = float(torch.linalg.vector_norm(sample.double()))
    return norm if math.isfinite(norm) else NOT_FINITE


def is_finite(tensor: Tensor | None) -> bool:
    """Whether no NaN and no Inf is found in the sample of a tensor."""
    return tensor is None or norm_of(tensor) != NOT_FINITE


def projected(gradient: Tensor) -> float:
    """A fixed linear function of a gradient, to tell gradients apart."""
    sample = _sample(gradient, _PROJECTED)
    if sample is None:
        return math.nan
    with torch.no_grad():
        numbers = torch.arange(
            sample.numel(), dtype=torch.float64, device=sample.device
        )
        return float(torch.dot(sample.double(), torch.cos(numbers * 0.7 + 0.3)))


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, which reading values would break."""
    cuda = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _sample(tensor: Tensor, most: int = _SAMPLE) -> Tensor | None:
    """Some elements, evenly spaced; None of tensors that cannot be read so."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided or tensor.is_meta:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // most))]
