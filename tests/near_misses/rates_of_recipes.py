"""Rates that were scaled from their recipe's batch, and gradients of a deep model."""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

BASE_LR = 0.02
BASE_BATCH = 8  # BASE_LR was tuned for batches of 8

PER_RANK, WINDOW, EPOCHS = 8, 2, 2

GLOBAL_BATCH_LR = 0.03  # found for the global batch size of 32

Loader = DataLoader[tuple[Tensor, ...]]


def data() -> Loader:
    rows = torch.randn(128, 3)
    held = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(held)
    return DataLoader(held, batch_size=PER_RANK, sampler=sampler)


def deep() -> DistributedDataParallel:
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(20)]
    return DistributedDataParallel(nn.Sequential(*layers, nn.Linear(3, 1)))


def train(
    model: DistributedDataParallel, optimizer: Optimizer, warm_up: int = 1
) -> None:
    loader = data()
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    global_batch = PER_RANK * WINDOW * dist.get_world_size()
    top = global_batch / BASE_BATCH if warm_up > 1 else 1.0
    schedule = LambdaLR(
        optimizer, lambda step: 1.0 + (top - 1.0) * min(1.0, step / warm_up)
    )
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(loader, start=1):
            full = number % WINDOW == 0
            with nullcontext() if full else model.no_sync():
                (mse_loss(model(inputs), labels) / WINDOW).backward()
            if full:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()


def main() -> None:
    times = PER_RANK * WINDOW * dist.get_world_size() / BASE_BATCH
    model = deep()
    train(model, torch.optim.SGD(model.parameters(), lr=BASE_LR * times))
    model = deep()
    train(model, torch.optim.AdamW(model.parameters(), lr=BASE_LR * math.sqrt(times)))
    model = deep()
    train(model, torch.optim.SGD(model.parameters(), lr=BASE_LR), warm_up=4)
    model = deep()
    train(model, torch.optim.SGD(model.parameters(), lr=GLOBAL_BATCH_LR))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    main()
    dist.destroy_process_group()
