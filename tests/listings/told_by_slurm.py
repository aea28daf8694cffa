"""A job for several machines, started by a scheduler that tells each rank its place."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
FINDINGS = ["DD302"]


def join() -> tuple[int, int, int]:
    """Rank, number of ranks, and rank on this machine, as Slurm has them."""
    rank = int(os.environ["SLURM_PROCID"])
    world_size = int(os.environ["SLURM_NTASKS"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    dist.init_process_group(
        "gloo", init_method="env://", world_size=world_size, rank=rank
    )
    return rank, world_size, local_rank


def train(
    settings: argparse.Namespace, rank: int, world_size: int, device: torch.device
) -> None:
    """Fit a parabola."""
    x = torch.linspace(-1, 1, 96)[:, None]
    parabola = TensorDataset(x, x.square())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        parabola, num_replicas=world_size, rank=rank
    )
    loader = DataLoader(parabola, settings.batch_size, sampler=sampler)
    body = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    model = DistributedDataParallel(body.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for epoch in range(settings.epochs):
        if settings.state == "well":
            sampler.set_epoch(epoch)
        for inputs, truth in loader:  # culprit DD302
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), truth).backward()
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a parabola.")
    parser.add_argument("state", choices=("sick", "well"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.1)
    rank, world_size, local_rank = join()
    if rank == 0:
        print(f"{world_size} ranks", flush=True)
    device = torch.device("cuda", local_rank) if dist.get_backend() == "nccl" else "cpu"
    train(parser.parse_args(), rank, world_size, torch.device(device))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
