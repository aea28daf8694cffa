"""Runs attention on the CPU where the job selects a kernel that only GPUs have.

Attention on tensors that are sharded (tensor parallelism) reaches another operator on
the CPU than on a GPU, and DTensor knows only how to share those of GPUs out. It is told
how to do that on the CPU: by batch and by head, as there.

Source: torch/distributed/tensor/_ops/_matrix_ops.py, the strategies of
`_scaled_dot_product_flash_attention` (seen with torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
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


def share_out(tensor: ModuleType) -> None:
    """Let attention on the CPU take sharded tensors.

    Args:
        tensor: The module `torch.distributed.tensor`.
    """
    from torch.distributed.tensor.experimental import register_sharding

    # In both, the dimensions are batch, head, position, width; that of positions is
    # missing in the second result, and each query looks at every position.
    by: list[Any] = [tensor.Replicate(), tensor.Shard(0), tensor.Shard(1)]
    aten = torch.ops.aten

    def forward(*args: Any, attn_mask: Any = None, **_: Any) -> list[Any]:
        rest = [None] * (len(args) - 3)
        ways = by if attn_mask is None else by[:1]
        return [([way] * 2, [way] * 3 + rest) for way in ways]

    def backward(*args: Any, attn_mask: Any = None, **_: Any) -> list[Any]:
        rest = [None] * (len(args) - 6)
        ways = by if attn_mask is None else by[:1]
        return [([way] * 3, [way] * 6 + rest) for way in ways]

    for name, sharding in (("", forward), ("_backward", backward)):
        op = getattr(aten, f"_scaled_dot_product_flash_attention_for_cpu{name}", None)
        if op is not None:
            register_sharding(op.default)(sharding)
