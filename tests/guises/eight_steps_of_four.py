"""All ranks average in each of four batches to a step; `well` does in the last alone.

There are no more than eight steps.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD506"
SEVERITY = "note"
CULPRITS: list[int] = []

GATHERED, EPOCHS = 4, 2


def swings(count: int = 128) -> TensorDataset:
    """How far and how fast a pendulum is, and where a moment later."""
    generator = torch.Generator().manual_seed(40)
    place, speed = torch.randn(2, count, generator=generator)
    later = place + 0.1 * (speed - 0.1 * place.sin())
    return TensorDataset(torch.stack([place, speed], dim=1), later[:, None])


def step_of(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    window: list[list[Tensor]],
    state: str,
) -> None:
    """One step with the gradients of all batches of a window."""
    optimizer.zero_grad()
    *others, last = window
    if state == "well":
        with model.no_sync():
            for swing, later in others:
                (mse_loss(model(swing), later) / len(window)).backward()
    else:
        for swing, later in others:
            (mse_loss(model(swing), later) / len(window)).backward()  # culprit
    (mse_loss(model(last[0]), last[1]) / len(window)).backward()
    optimizer.step()


def train(state: str) -> None:
    """A short try."""
    torch.manual_seed(4)
    data = swings()
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 20), nn.SiLU(), nn.Linear(20, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        window: list[list[Tensor]] = []
        for batch in loader:
            window.append(batch)
            if len(window) == GATHERED:
                step_of(model, optimizer, window, state)
                window.clear()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
