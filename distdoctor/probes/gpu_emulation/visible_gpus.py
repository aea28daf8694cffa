"""How many GPUs a node would have where the CPU stands in for them."""

from __future__ import annotations

import os

from distdoctor.journal.environment import RANKS_VARIABLE

VISIBLE = "CUDA_VISIBLE_DEVICES"

ALLOWS_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"  # from NCCL 2.30.3 on


def sharing_is_allowed() -> bool:
    """Whether the user has told NCCL to let ranks share a GPU."""
    return os.environ.get(ALLOWS_SHARING) == "1"


def number_of_devices() -> int:
    """How many GPUs this node would have: those made visible, or one for each rank."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        named = [part.strip() for part in visible.split(",")]
        ends = [n for n, part in enumerate(named) if part in {"", "-1"}]
        return min(ends, default=len(named))
    for variable in ("LOCAL_WORLD_SIZE", RANKS_VARIABLE):
        text = os.environ.get(variable, "")
        if text.isdigit():
            return int(text)
    return 1
