"""A learning rate that rises with the ranks and warms up, computed by hand.

Behind the warm-up the curve begins above what the warm-up had come to.
"""

import math
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
FINDINGS = ["DD533"]

WARM_UP, TOTAL = 6, 24


def rate(step: int, base: float, most: float, state: str) -> float:
    """Up along a line, and down along a cosine."""
    if step < WARM_UP:
        return base + (most - base) * step / WARM_UP
    gone = (step - WARM_UP) / (TOTAL - WARM_UP)
    height = most if state == "sick" else most - base
    return base + 0.5 * height * (1 + math.cos(math.pi * gone))


def main(state: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(96, 5)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(5, 1))
    base = 0.01
    most = base * dist.get_world_size() * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=base)
    step = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, base, most, state)  # culprit DD533
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
            step += 1


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
