"""Ways to train with DistributedDataParallel; the first argument says which."""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import (
    PeriodicModelAverager,
)
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bit_jobs.leaving import leave
from bit_jobs.training import fit, run_chosen

FEATURES, CLASSES = 12, 3


def make_model() -> nn.Sequential:
    """A small classifier with buffers and dropout."""
    return nn.Sequential(
        nn.Linear(FEATURES, 32),
        nn.BatchNorm1d(32),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(32, CLASSES),
    )


def make_batches(samples: int = 128, epochs: int = 2) -> list[list[Tensor]]:
    """This rank's batches."""
    generator = torch.Generator().manual_seed(7)
    points = torch.randn(samples, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (samples,), generator=generator)
    data = TensorDataset(points, targets)
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    batches = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        batches += list(loader)
    return batches


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Mean over a batch."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[list[Tensor]]
) -> list[float]:
    """One step per batch."""
    return fit(optimizer, batches, lambda *batch: loss_of(model, [*batch]))


def plain() -> None:
    """As the tutorial has it."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = train(model, optimizer, make_batches())
    leave(model=model, optimizer=optimizer, losses=losses)


def views() -> None:
    """Gradients that are views of the buckets, and a static graph."""
    model = DistributedDataParallel(
        make_model(),
        gradient_as_bucket_view=True,
        static_graph=True,
        bucket_cap_mb=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in make_batches():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses)


def unused() -> None:
    """A layer that only some batches use."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.extra = make_model(), nn.Linear(CLASSES, CLASSES)

        def forward(self, points: Tensor, uses: bool) -> Tensor:
            logits: Tensor = self.stem(points)
            return logits + self.extra(logits) if uses else logits

    model = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    losses = []
    for index, (points, targets) in enumerate(make_batches()):
        loss = functional.cross_entropy(model(points, index % 2 == 0), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses)


def accumulation() -> None:
    """Four batches a step, of which three are not synchronized; a schedule."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=4)
    losses = []
    for index, batch in enumerate(make_batches(epochs=4)):
        steps = index % 4 == 3
        with nullcontext() if steps else model.no_sync():
            loss = loss_of(model, batch) / 4
            loss.backward()
        losses.append(loss.item())
        if steps:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    leave(model=model, optimizer=optimizer, losses=losses, rate=schedule.get_last_lr())


def join() -> None:
    """Ranks with inputs of unequal number."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    batches = make_batches()
    with Join([model]):
        for batch in batches[: len(batches) - 2 * dist.get_rank()]:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses)


def zero() -> None:
    """The optimizer's state is divided among the ranks."""
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    losses = train(model, optimizer, make_batches())
    leave(model=model, optimizer=optimizer.optim, losses=losses)


def fp16_hook() -> None:
    """Gradients are summed as halves."""
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    losses = train(model, optimizer, make_batches())
    leave(model=model, optimizer=optimizer, losses=losses)


def powersgd() -> None:
    """Gradients are summed as products of two thin matrices."""
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 3))
    )
    state = power_sgd.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=3
    )
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = train(model, optimizer, make_batches())
    leave(
        model=model,
        optimizer=optimizer,
        losses=losses,
        errors=[*state.error_dict.values()],
    )


def post_local() -> None:
    """Ranks step alone, and average their weights every third step."""
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 3))
    )
    state = PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=4,
        post_local_gradient_allreduce=False,
    )
    model.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        PeriodicModelAverager(period=3, warmup_steps=4),
    )
    losses = train(model, optimizer, make_batches()[:14])
    leave(model=model, losses=losses)


def resumed() -> None:
    """Saved by rank 0, loaded by all, and gone on from there."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = make_batches()
    losses = train(model, optimizer, batches[:4])
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    path = Path(folder[0], "saved.pt")
    if dist.get_rank() == 0:
        saved = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(saved, path)
    dist.barrier()
    kept = torch.load(path, weights_only=True)
    dist.barrier()
    if dist.get_rank() == 0:
        path.unlink()
        path.parent.rmdir()
    model.module.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    losses += train(model, optimizer, batches[4:])
    leave(model=model, optimizer=optimizer, losses=losses)


def main() -> None:
    """Run one of them."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:  # by mpirun
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29655")
        os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
        torch.set_num_threads(1)
    run_chosen(globals())


if __name__ == "__main__":
    main()
