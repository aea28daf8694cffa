"""Ranks write and read files side by side, each in good order.

Rank 0 prepares the data and saves the model while the others wait; each rank keeps its
own random state and log; a job goes on from the last checkpoint with all that belongs
to it; and a part of other weights is taken over, with a new head on purpose.
"""

import logging
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

log = logging.getLogger("train")


class Job:
    """All that a checkpoint holds."""

    def __init__(self, data: TensorDataset) -> None:
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1))
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = StepLR(self.optimizer, step_size=1, gamma=0.7)
        self.sampler: DistributedSampler[Any] = DistributedSampler(data, seed=2)
        self.loader = DataLoader(data, batch_size=6, sampler=self.sampler)
        self.epoch = 0

    def train(self, until: int) -> None:
        while self.epoch < until:
            self.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                noise = random.gauss(0.0, 0.01)
                self.optimizer.zero_grad()
                loss = (self.model(x + noise)[:, 0] - y).square().mean()
                torch.autograd.backward(loss)
                self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
            log.info("epoch %d", self.epoch)

    def save(self, folder: Path) -> None:
        """Rank 0 the model, at once or not at all; each rank its random state."""
        rank = dist.get_rank()
        torch.save([random.getstate(), torch.get_rng_state()], folder / f"{rank}.rng")
        if rank == 0:
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "epoch": self.epoch,
            }
            torch.save(state, folder / "last.tmp")
            os.replace(folder / "last.tmp", folder / "last.pt")  # noqa: PTH105
        dist.barrier()

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "last.pt")
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch = state["epoch"]
        own = torch.load(folder / f"{dist.get_rank()}.rng", weights_only=False)
        random.setstate(own[0])
        torch.set_rng_state(own[1])


def prepared(folder: Path) -> TensorDataset:
    """The data, made by rank 0 and read by all."""
    if dist.get_rank() == 0:
        x = torch.randn(60, 5, generator=torch.Generator().manual_seed(8))
        torch.save((x, x.sum(1)), folder / "data.pt")
    dist.barrier()
    x, y = torch.load(folder / "data.pt")
    return TensorDataset(x, y)


def take_over(state: dict[str, Tensor]) -> nn.Module:
    """The body of a trained model under a new head."""
    model = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))
    model.load_state_dict({n: t for n, t in state.items() if n[0] == "0"}, strict=False)
    return model


def main() -> None:
    dist.init_process_group("gloo")
    place = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(place)
    folder = Path(place[0])
    logging.basicConfig(filename=folder / f"{dist.get_rank()}.log", level="INFO")
    torch.manual_seed(1)
    random.seed(1)
    data = prepared(folder)
    first = Job(data)
    first.train(until=2)
    first.save(folder)
    second = Job(data)
    second.load(folder)
    second.train(until=4)
    take_over(second.model.module.state_dict())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
