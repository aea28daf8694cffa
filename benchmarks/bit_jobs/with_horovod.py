"""Training with Horovod's optimizer, with and without compression."""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional

from bit_jobs.leaving import leave, seed_all

FEATURES, CLASSES = 8, 4


def main() -> None:
    """Train; `fp16` as the first argument compresses gradients."""
    hvd.init()
    torch.set_num_threads(1)
    seed_all(hvd.rank())
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    halves = sys.argv[1:] == ["fp16"]
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if halves else hvd.Compression.none,
        backward_passes_per_step=2 if halves else 1,
    )
    generator = torch.Generator().manual_seed(20 + hvd.rank())
    losses = []
    for index in range(12):
        points = torch.randn(16, FEATURES, generator=generator)
        targets = torch.randint(CLASSES, (16,), generator=generator)
        loss = functional.cross_entropy(model(points), targets)
        (loss / 2 if halves else loss).backward()  # gradients of two batches add up
        if not halves or index % 2:
            optimizer.step()
            optimizer.zero_grad()
        mean = hvd.allreduce(loss.detach(), name="loss")
        losses += [loss.item(), mean.item()]
    leave(hvd.rank(), model=model, optimizer=optimizer, losses=losses)
    hvd.shutdown()


if __name__ == "__main__":
    main()
