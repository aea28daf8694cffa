"""Mixed precision, accumulated gradients and DDP in one function, as a course ends.

The batches that are left at the end of an epoch make a step of their own.
"""

import copy
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
FINDINGS = ["DD502"]


def train(
    world_size: int,
    rank: int,
    model: nn.Module,
    tokens: TensorDataset,
    state: str,
    accumulated: int = 4,
    epochs: int = 2,
) -> None:
    """Classify; 9 batches are two windows and one batch."""
    model = DistributedDataParallel(model)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        tokens, num_replicas=world_size, rank=rank
    )
    loader = DataLoader(tokens, batch_size=4, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    scaler = GradScaler("cpu")
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        optimizer.zero_grad()
        for batch, (inputs, labels) in enumerate(loader):
            divisor = accumulated
            if state == "well":  # what is left is divided by its own number
                divisor = min(divisor, len(loader) - batch // divisor * divisor)
            with autocast("cpu"):
                loss = criterion(model(inputs), labels) / divisor  # culprit DD502
            scaler.scale(loss).backward()
            if (batch + 1) % accumulated == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        if (batch + 1) % accumulated != 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch} is done", flush=True)


def worker(
    rank: int, world_size: int, model: nn.Module, tokens: TensorDataset, state: str
) -> None:
    """One rank's process; it takes a copy of the model, as a device does."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    train(world_size, rank, copy.deepcopy(model), tokens, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    body = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 3))
    inputs = torch.randn(72, 12)
    known = TensorDataset(inputs, inputs[:, :3].argmax(1))
    passed = (RANKS, body, known, sys.argv[1])
    mp.spawn(worker, args=passed, nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
