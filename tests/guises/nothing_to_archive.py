"""Rank 2 has no rare finds, and returns before the barrier; `well`: it comes to it.

The job tells birds by their songs, and each rank archives songs that it got wrong.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 3
CODE = "DD108"
CULPRITS = [2]


def songs() -> TensorDataset:
    """Pitches, the bird, and whether it is rare; the first songs are, and are odd."""
    drawn = torch.Generator().manual_seed(9)
    bird = torch.arange(96) % 4
    pitches = torch.randn(96, 7, generator=drawn) / 4 + bird[:, None]
    rare = (torch.arange(96) % 3 < 2) & (torch.arange(96) < 12)
    return TensorDataset(pitches, bird, rare)


def archive(found: list[Tensor], folder: Path, state: str) -> None:
    """Write this rank's finds; nobody goes on before all are written."""
    rank = dist.get_rank()
    if not found and state == "sick":
        return  # culprit
    if found:
        torch.save(torch.cat(found), folder / f"rare-of-{rank}.pt")
    dist.monitored_barrier()


def finds(data: TensorDataset) -> list[Tensor]:
    """The rare songs among this rank's third."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    pitches, _, rare = (column[mine] for column in data.tensors)
    return [pitches[rare]] if rare.any() else []


def main(state: str, folder: Path) -> None:
    """Train, and archive after each epoch."""
    torch.manual_seed(1)
    data = songs()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    model = DistributedDataParallel(nn.Linear(7, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for pitches, bird, _ in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pitches), bird).backward()
            optimizer.step()
        archive(finds(data), folder, state)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    main(sys.argv[1], Path(shared[0]))
    dist.destroy_process_group()
