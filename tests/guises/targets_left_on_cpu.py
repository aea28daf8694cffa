"""Targets stay on the CPU, outputs are on the GPU, on all ranks; `well` moves both."""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
OF_A_START = True
VERDICT = "unknown"
CODE = ""
CULPRITS: list[int] = []
ERROR = "RuntimeError"

POINTS = 96


def orbits() -> TensorDataset:
    """Positions on an ellipse, and where the body is a moment later."""
    angles = torch.rand(POINTS, generator=torch.Generator().manual_seed(19)) * 6.28
    axes = torch.tensor([2.0, 1.0])
    now = torch.stack([angles.cos(), angles.sin()], dim=1) * axes
    later = torch.stack([(angles + 0.2).cos(), (angles + 0.2).sin()], dim=1) * axes
    return TensorDataset(now, later)


def train(state: str) -> None:
    """Learn the motion."""
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    torch.manual_seed(28)
    dataset = orbits()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).cuda()
    model = DistributedDataParallel(network, device_ids=[gpu])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for now, later in loader:
            out = model(now.cuda())
            target = later.cuda() if state == "well" else later  # culprit
            loss = (out - target).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        sys.stdout.write("trained\n")


if __name__ == "__main__":
    dist.init_process_group("nccl")
    train(sys.argv[1])
    dist.destroy_process_group()
