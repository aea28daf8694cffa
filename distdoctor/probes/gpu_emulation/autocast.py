"""Maps autocast and GradScaler for CUDA to those for the CPU.

Without this, torch switches both off on a machine without GPUs, with a warning, and
whatever is wrong with them stays unseen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import GradScaler
from torch.amp.autocast_mode import autocast

from distdoctor.probes.gpu_emulation import autocast_products
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import asked_by_compiler
from distdoctor.probes.recorder import RECORDER

_is_enabled = torch.is_autocast_enabled
_dtype_of = torch.get_autocast_dtype


def install() -> None:
    """Replace the functions and classes."""
    _watch_autocast()
    _watch_scaler()
    replace(torch, "is_autocast_enabled", _is_autocast_enabled)
    replace(torch, "get_autocast_dtype", _get_autocast_dtype)
    replace(torch, "get_autocast_gpu_dtype", lambda _made: _cuda_dtype())


def _watch_autocast() -> None:
    made = autocast.__init__

    @functools.wraps(made)
    def initialise(
        self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type == "cuda":
            RECORDER.substituted("amp")
            autocast_products.install()
            device_type, dtype = "cpu", dtype or _dtype_of("cuda")
        made(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = initialise  # type: ignore[method-assign]


def _watch_scaler() -> None:
    made = GradScaler.__init__

    @functools.wraps(made)
    def initialise(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        if str(device).startswith("cuda"):
            RECORDER.substituted("amp")
            device = "cpu"
        made(self, device, *args, **kwargs)

    GradScaler.__init__ = initialise  # type: ignore[method-assign]


def _is_autocast_enabled(_made: Callable[..., Any], device: str = "cuda", /) -> Any:
    return _is_enabled("cpu" if _is_mapped(device) else device)


def _get_autocast_dtype(_made: Callable[..., Any], device: str, /) -> Any:
    return _cuda_dtype() if _is_mapped(device) else _dtype_of(device)


def _is_mapped(device: str) -> bool:
    return device == "cuda" and not asked_by_compiler(4)


def _cuda_dtype() -> Any:
    return _dtype_of("cpu" if _is_enabled("cpu") else "cuda")
