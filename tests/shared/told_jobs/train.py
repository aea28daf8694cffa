"""The `train.py` of the documents: healthy, small, with the options told there."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    """What it was called with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--resume", type=Path)
    return parser.parse_args()


def main() -> None:
    """Fit a line through points, and save after each epoch."""
    given = arguments()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    points = torch.randn(256, 4)
    wanted = points.sum(1, keepdim=True)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    begin = 0
    if given.resume:
        kept = torch.load(given.resume)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        begin = kept["epoch"]
    batch = given.batch or max(1, 64 // ranks)
    for epoch in range(begin, given.epochs):
        for step in range(4):
            first = (64 * step + batch * rank) % len(points)
            part = slice(first, first + batch)
            loss = nn.functional.mse_loss(model(points[part]), wanted[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"epoch": epoch + 1}, "ckpt.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
