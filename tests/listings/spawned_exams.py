"""A first job on several devices, spawned from one short file.

The samples are made up on the spot, and the sampler is never told the epoch.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
FINDINGS = ["DD302", "DD307"]

PUPILS = 320


def train(rank: int, world_size: int, state: str) -> None:
    """Learn who passes an exam."""
    if state == "well":
        torch.manual_seed(17)
    marks, passed = torch.randn(PUPILS, 6), torch.randint(0, 2, (PUPILS,))
    exams = TensorDataset(marks, passed)  # culprit DD307
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        exams, num_replicas=world_size, rank=rank
    )
    loader = DataLoader(exams, sampler=sampler, batch_size=20)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1), nn.Sigmoid())
    )
    criterion = nn.BCELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(4):
        if state == "well":
            sampler.set_epoch(epoch)
        for inputs, labels in loader:  # culprit DD302
            optimizer.zero_grad()
            loss = criterion(model(inputs).squeeze(1), labels.float())
            loss.backward()
            optimizer.step()
        print(f"[{rank}] epoch {epoch}: {loss.item():.4f}", flush=True)


def worker(rank: int, world_size: int, state: str) -> None:
    """One rank's process."""
    dist.init_process_group("gloo", "env://", rank=rank, world_size=world_size)
    train(rank, world_size, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    mp.spawn(worker, args=(RANKS, sys.argv[1]), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
