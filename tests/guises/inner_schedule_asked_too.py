"""All ranks ask the outer schedule and the inner one; `well` asks the outer alone."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import huber_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LinearLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD532"
CULPRITS: list[int] = []

WARM, PERIOD, STEPS = 8, 20, 68


def arms(count: int = 136) -> TensorDataset:
    """Angles of a robot's two joints, and where its hand is then."""
    angles = torch.rand(count, 2, generator=torch.Generator().manual_seed(77)) * 3
    first, both = angles[:, :1], angles.sum(1, keepdim=True)
    across = first.cos() + both.cos()
    return TensorDataset(angles, torch.cat([across, first.sin() + both.sin()], dim=1))


class Trainer:
    """Makes so many steps, over as many epochs as that takes."""

    def __init__(self) -> None:
        torch.manual_seed(20)
        data = arms()
        self.sampler: DistributedSampler[object] = DistributedSampler(data, seed=20)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.model = DistributedDataParallel(
            nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        up = LinearLR(self.optimizer, start_factor=0.1, total_iters=WARM)
        self.waves = CosineAnnealingWarmRestarts(self.optimizer, T_0=PERIOD)
        parts = [up, self.waves]
        self.schedule = SequentialLR(self.optimizer, parts, milestones=[WARM])

    def fit(self, state: str) -> None:
        """Learn where the hand is."""
        for epoch in range(STEPS // len(self.loader)):
            self.sampler.set_epoch(epoch)
            for angles, hand in self.loader:
                self.optimizer.zero_grad(set_to_none=True)
                huber_loss(self.model(angles), hand).backward()
                self.optimizer.step()
                self.schedule.step()
                if state == "sick":
                    self.waves.step()  # culprit


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().fit(sys.argv[1])
    dist.destroy_process_group()
