"""Batches that no DataLoader gives: each rank's own, or one for all to try a model."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

SAMPLES, WIDTH, BATCH = 96, 6, 8


def learn(model: nn.Module, batches: list[Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # one order for all
    samples = torch.randn(SAMPLES, WIDTH)
    tried = DistributedDataParallel(nn.Linear(WIDTH, 1))
    learn(tried, [samples[:BATCH]] * 6)
    model = DistributedDataParallel(nn.Linear(WIDTH, 1))
    for _ in range(2):
        order = torch.randperm(SAMPLES)[rank::world]
        learn(model, [samples[part] for part in order.split(BATCH)])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
