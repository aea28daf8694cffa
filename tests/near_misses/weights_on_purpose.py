"""Weights, buffers and gradients that differ, and are meant to.

Ranks seed differently, drop out differently and keep running statistics of their own
while they train; a part is frozen, and experts belong to one rank each; a moving
average is kept on all ranks, and gradients travel as float16. At last the ranks train
alone and average their weights now and then.
"""

import copy
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

log = logging.getLogger(__name__)

WIDTH = 8


class Routed(nn.Module):
    """A shared body with a frozen adapter, and an expert that is the rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        )
        self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.expert = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        features = self.body(x)
        return self.expert(features + self.frozen(features))


def together(rank: int) -> None:
    """Data parallel, but for the experts."""
    model = Routed()
    own = [name for name, _ in model.named_parameters() if name.startswith("expert")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(
        (p for p in wrapped.parameters() if p.requires_grad), lr=1e-3
    )
    for _ in range(12):
        optimizer.zero_grad()
        wrapped(torch.randn(32, WIDTH)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
    if rank == 0:
        log.info("%.3f", average.frozen.weight.norm())


def apart() -> None:
    """Local SGD: four steps alone, then the mean of all weights."""
    model = nn.Linear(WIDTH, 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(1, 13):
        optimizer.zero_grad()
        model(torch.randn(16, WIDTH)).square().mean().backward()
        optimizer.step()
        if step % 4 == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(40 + rank)
    together(rank)
    apart()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
