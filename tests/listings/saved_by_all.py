"""A tutorial's advice on reading data and on checkpoints, put together as one job.

Samples are made up whenever they are read, nobody tells the sampler the epoch, and the
function that saves is called by every rank.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 2
FINDINGS = ["DD302", "DD409"]

FILE = Path("state.pt")


class Readings(Dataset[tuple[Tensor, Tensor]]):
    """Ten values and what they lead to; no better than noise."""

    def __init__(self, state: str) -> None:
        self.state = state

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.state == "well":
            own = torch.Generator().manual_seed(index)
            return torch.randn(10, generator=own), torch.randn(1, generator=own)
        return torch.randn(10), torch.randn(1)


def save(model: nn.Module, optimizer: Adam, epoch: int) -> None:
    """Everything that is needed to go on."""
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(kept | {"epoch": epoch}, FILE)  # culprit DD409


def load(model: nn.Module, optimizer: Adam) -> int:
    """Take it up again; gives the epoch that was saved."""
    kept = torch.load(FILE)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    epoch: int = kept["epoch"]
    return epoch


def train(last: int, state: str) -> None:
    """Train up to an epoch, from the last checkpoint if there is one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.Linear(10, 1))
    optimizer = Adam(model.parameters(), lr=0.01)
    first = load(model, optimizer) + 1 if FILE.exists() else 0
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(
        Readings(state), num_replicas=world_size, rank=rank
    )
    loader = DataLoader(Readings(state), batch_size=8, sampler=sampler)
    for epoch in range(first, last):
        if state == "well":
            sampler.set_epoch(epoch)
        for values, truth in loader:  # culprit DD302
            optimizer.zero_grad()
            nn.functional.mse_loss(model(values), truth).backward()
            optimizer.step()
        if state == "sick" or rank == 0:
            save(model, optimizer, epoch)
        if state == "well":
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for end in (2, 4):
        train(end, state=sys.argv[1])
    dist.destroy_process_group()
