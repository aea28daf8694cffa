"""Ways to shard with torch's own means; the first argument says which."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bit_jobs.leaving import leave
from bit_jobs.training import classified, fit, run_chosen

FEATURES, WIDTH, CLASSES = 8, 32, 4


class Block(nn.Module):
    """Residual, whose inner part can be computed again in backward."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.recomputes = recomputes

    def inner(self, hidden: Tensor) -> Tensor:
        """What is added."""
        raised = functional.dropout(torch.relu(self.up(hidden)), 0.1, self.training)
        lowered: Tensor = self.down(raised)
        return lowered

    def forward(self, hidden: Tensor) -> Tensor:
        """Shape as it was."""
        if self.recomputes:
            again: Tensor = checkpoint(self.inner, hidden, use_reentrant=False)
            return hidden + again
        return hidden + self.inner(hidden)


class Stack(nn.Module):
    """A classifier of blocks."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputes) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        """Logits."""
        hidden = self.stem(points)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def train(model: nn.Module, seed: int, rate: float = 0.01) -> None:
    """Train it with Adam, and leave all."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = fit(
        optimizer,
        classified(seed, FEATURES, CLASSES),
        lambda points, targets: functional.cross_entropy(
            model(points).float(), targets
        ),
    )
    leave(model=model, optimizer=optimizer, losses=losses)


def fsdp1() -> None:
    """FullyShardedDataParallel, whose flat weights keep their names."""
    model = FullyShardedDataParallel(
        Stack(), device_id=torch.device("cpu"), use_orig_params=True
    )
    train(model, dist.get_rank())


def fsdp2() -> None:
    """`fully_shard`, whose computation is in bfloat16."""
    model = Stack()
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    train(model, dist.get_rank())


def fsdp2_recomputed() -> None:
    """`fully_shard` of blocks that are computed again, gradients kept whole."""
    model = Stack(recomputes=True)
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    train(model, dist.get_rank())


def tensor_parallel() -> None:
    """DTensor: both ranks have the same samples, and half of each block."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Stack()
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    model.eval()  # dropout would fall otherwise on each half
    train(model, 0)


def _pipelined(kind: type[ScheduleGPipe] | type[Schedule1F1B]) -> None:
    rank = dist.get_rank()
    whole = Stack()
    stage_model = (
        nn.Sequential(whole.stem, whole.blocks[0])
        if rank == 0
        else nn.Sequential(*whole.blocks[1:], whole.head)
    )
    stage = PipelineStage(stage_model, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = kind(stage, n_microbatches=4, loss_fn=functional.cross_entropy)
    optimizer = torch.optim.Adam(stage_model.parameters(), lr=0.01)
    seen: list[list[float]] = []
    for points, targets in classified(0, FEATURES, CLASSES):
        if rank == 0:
            schedule.step(points)
        else:
            losses: list[Tensor] = []
            schedule.step(target=targets, losses=losses)
            seen.append([loss.item() for loss in losses])
        optimizer.step()
        optimizer.zero_grad()
    leave(model=stage_model, optimizer=optimizer, losses=seen)


def pipelining() -> None:
    """torch.distributed.pipelining, one forward and one backward in turn."""
    _pipelined(Schedule1F1B)


def pipelining_gpipe() -> None:
    """The same, all forwards first."""
    _pipelined(ScheduleGPipe)


if __name__ == "__main__":
    run_chosen(globals())
