"""What the jobs have in common: batches of numbers, steps, and how one is chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bit_jobs.leaving import seed_all

BATCH = 16


def classified(
    seed: int, features: int, classes: int, steps: int = 10
) -> list[tuple[Tensor, Tensor]]:
    """Batches of points and their classes; ranks that share samples give one seed."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(BATCH, features, generator=generator),
            torch.randint(classes, (BATCH,), generator=generator),
        )
        for _ in range(steps)
    ]


def fit(
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Iterable[Tensor]],
    loss_of: Callable[..., Tensor],
) -> list[float]:
    """One step per batch; the losses."""
    losses = []
    for batch in batches:
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"loss {losses[-1]:.6f}", flush=True)
    return losses


def run_chosen(jobs: Mapping[str, Any]) -> None:
    """Run the job that the first argument names, on gloo; the second one is its seed.

    Args:
        jobs: Functions by name, such as all that a program has.
    """
    dist.init_process_group("gloo")
    seed_all(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    jobs[sys.argv[1]]()
    dist.destroy_process_group()
