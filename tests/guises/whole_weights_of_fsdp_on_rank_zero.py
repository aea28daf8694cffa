"""Rank 0 alone asks FSDP for the whole state dict; `well`: all ask, and rank 0 saves.

The job tells forged bank notes by their measures, and saves after each epoch.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD212"
CULPRITS = [0]


def bank_notes(count: int = 128) -> TensorDataset:
    """Six measures of each note, and whether it is forged."""
    drawn = torch.Generator().manual_seed(4)
    measures = torch.randn(count, 6, generator=drawn)
    return TensorDataset(measures, (measures[:, 0] > measures[:, 3]).float())


def save(model: nn.Module, path: Path, state: str) -> None:
    """Write the weights under their name once they are whole."""
    rank = dist.get_rank()
    draft = path.with_suffix(".draft")
    if state == "well":
        weights = model.state_dict()
        if rank == 0:
            torch.save(weights, draft)
            draft.replace(path)
    elif rank == 0:  # culprit
        torch.save(model.state_dict(), draft)
        draft.replace(path)
    dist.barrier()


def main(state: str, folder: Path) -> None:
    """Train for three epochs."""
    torch.manual_seed(17)
    network = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 1))
    model = Fsdp(network, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    notes = bank_notes()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(notes, seed=5)
    loader = DataLoader(notes, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for measures, forged in loader:
            optimizer.zero_grad()
            scores = model(measures).squeeze(1)
            nn.functional.binary_cross_entropy_with_logits(scores, forged).backward()
            optimizer.step()
        save(model, folder / f"notes-{epoch}.pt", state)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    main(sys.argv[1], Path(shared[0]))
    dist.destroy_process_group()
