"""The checkpoint's parts lack the GradScaler's state; `well` adds it."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD517"
CULPRITS: list[int] = []


def save_atomically(parts: dict[str, Any], file: Path) -> None:
    """Never leave half a file."""
    fresh = file.with_suffix(".new")
    torch.save(parts, fresh)
    fresh.replace(file)


def pictures(count: int = 128) -> TensorDataset:
    """Rows of pixels, and how bright they are on the whole."""
    rows = torch.rand(count, 20, generator=torch.Generator().manual_seed(64))
    return TensorDataset(rows, rows.mean(dim=1, keepdim=True))


class Trainer:
    """Trains in half precision and keeps what is needed to go on."""

    def __init__(self, state: str) -> None:
        torch.manual_seed(5)
        self.complete = state == "well"
        layers = nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 1)
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)

    def parts(self, epoch: int) -> dict[str, Any]:
        """All that a checkpoint holds."""
        weights = self.model.module.state_dict()
        kept: dict[str, Any] = {"epoch": epoch, "weights": weights}  # culprit
        kept["optimizer"] = self.optimizer.state_dict()
        if self.complete:
            kept["scaler"] = self.scaler.state_dict()
        return kept

    def step(self, rows: Tensor, brightness: Tensor) -> None:
        """One batch."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            guess = self.model(rows)
        self.scaler.scale(l1_loss(guess.float(), brightness)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, dataset: TensorDataset, folder: Path) -> None:
        """Train, with a checkpoint after each epoch."""
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for rows, brightness in loader:
                self.step(rows, brightness)
            if dist.get_rank() == 0:
                save_atomically(self.parts(epoch), folder / "last.pt")
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    target = Path(tempfile.mkdtemp())
    Trainer(sys.argv[1]).fit(pictures(), target)
    shutil.rmtree(target)
    dist.destroy_process_group()
