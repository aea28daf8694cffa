"""What a job leaves, bit by bit: a digest of each tensor, number and random state."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

FOLDER_VARIABLE = "BIT_IDENTITY_FOLDER"
"""Names the folder into which each rank writes; not set: nothing is written."""


def _bytes_of(tensor: Tensor) -> Iterator[bytes]:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # a DTensor: this rank's part
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        yield from _bytes_of(tensor.indices())
        yield from _bytes_of(tensor.values())
        return
    yield f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    yield tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def digests(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Names and digests of all that a value holds; numbers stand for themselves."""
    if isinstance(value, Tensor):
        yield name, hashlib.sha256(b"".join(_bytes_of(value))).hexdigest()[:16]
    elif isinstance(value, np.ndarray):
        yield name, hashlib.sha256(value.tobytes()).hexdigest()[:16]
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from digests(f"{name}.{key}", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from digests(f"{name}[{index}]", each)
    elif isinstance(value, float):
        yield name, value.hex()
    elif isinstance(value, int | str | bool | None):
        yield name, repr(value)


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's weights, gradients, state and settings, without names."""
    groups = [
        {
            **{key: each for key, each in group.items() if key != "params"},
            "weights": list(group["params"]),
            "gradients": [weight.grad for weight in group["params"]],
            "state": [dict(optimizer.state.get(w, {})) for w in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    return {"groups": groups}


def seed_all(seed: int) -> None:
    """Seed the generators that everybody shares, as a job that is reproducible does."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def random_states() -> dict[str, object]:
    """Of the generators that everybody shares."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [kind, np.asarray(keys), position, has_gauss, gauss],
        "random": str(random.getstate()),
    }


def leave(rank: int | None = None, **things: object) -> None:
    """Write down digests of what a rank holds at its end, and of the random states.

    Args:
        rank: Which; by default the one of torch.distributed.
        things: Models, optimizers, tensors, numbers, and what holds such, by name.
    """
    found: dict[str, str] = {}
    for name, thing in things.items():
        value = thing
        if isinstance(thing, nn.Module):
            weights = dict(thing.named_parameters())
            gradients = {key: weight.grad for key, weight in weights.items()}
            buffers = dict(thing.named_buffers())
            value = {"weights": weights, "gradients": gradients, "buffers": buffers}
        elif isinstance(thing, torch.optim.Optimizer):
            value = of_optimizer(thing)
        elif isinstance(thing, torch.Generator):
            value = thing.get_state()
        found |= digests(name, value)
    found |= digests("random", random_states())
    write(found, dist.get_rank() if rank is None else rank)


def write(found: dict[str, str], rank: int) -> None:
    """Write what was found where the benchmark looks for it."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        path = Path(folder, f"rank{rank}.json")
        path.write_text(json.dumps(found, indent=0))
