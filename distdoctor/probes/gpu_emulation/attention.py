"""Runs attention on the CPU where the job selects a kernel that only GPUs have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import attention

from distdoctor.probes.gpu_emulation.replacement import replace


def install() -> None:
    """Replace the functions that select or run such kernels."""
    replace(attention, "_sdpa_kernel", _choose)
    replace(torch.backends.cuda, "enable_math_sdp", _enable_math)


def _choose(made: Callable[..., Any], backends: Iterable[Any], *args: Any) -> None:
    """The plain one stays as a last resort; where another can be used, it is."""
    chosen = list(backends)
    plain = attention.SDPBackend.MATH
    made(chosen if plain in chosen else [*chosen, plain], *args)


def _enable_math(made: Callable[..., Any], enabled: bool) -> None:
    del enabled
    made(True)
