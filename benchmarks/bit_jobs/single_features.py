"""Features of torch that data-parallel jobs use; the first argument says which."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bit_jobs.leaving import leave
from bit_jobs.training import BATCH, classified, fit, run_chosen

FEATURES, WIDTH, CLASSES = 8, 32, 4


def make_batches(steps: int = 10) -> list[tuple[Tensor, Tensor]]:
    """This rank's batches."""
    return classified(5 + dist.get_rank(), FEATURES, CLASSES, steps)


def make_model() -> nn.Sequential:
    """A small classifier."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(WIDTH, CLASSES),
    )


def autocast() -> None:
    """bfloat16 where torch thinks it right."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(points: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(model(points), targets)

    losses = fit(optimizer, make_batches(), loss_of)
    leave(model=model, optimizer=optimizer, losses=losses)


def scaler() -> None:
    """float16 with scaled losses, that overflow at first and are clipped."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    losses = []
    for points, targets in make_batches(14):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(points)
        loss = functional.cross_entropy(logits.float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses, scale=scaler.state_dict())


def recomputation() -> None:
    """Dropout in parts that backward computes again."""

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([make_model(), nn.Linear(CLASSES, FEATURES)])
            self.head = make_model()

        def forward(self, points: Tensor) -> Tensor:
            hidden = points
            for part in self.parts:
                hidden = checkpoint(part, hidden, use_reentrant=False)
            logits: Tensor = self.head(hidden)
            return logits

    model = DistributedDataParallel(Recomputed())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = fit(
        optimizer,
        make_batches(),
        lambda points, targets: functional.cross_entropy(model(points), targets),
    )
    leave(model=model, optimizer=optimizer, losses=losses)


class Jittered(Dataset[tuple[Tensor, int]]):
    """Samples that draw from all three generators when they are fetched."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = torch.full((FEATURES,), float(index)) / 96 + 0.1 * torch.randn(FEATURES)
        point += float(np.random.rand()) * 0.1 + random.random() * 0.1
        return point, index % CLASSES


def _seed_worker(_number: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def workers() -> None:
    """Two loader processes, several generators, dropout by one of its own."""
    rank = dist.get_rank()
    random.seed(rank)
    np.random.seed(rank)
    mine, loading = (
        torch.Generator().manual_seed(rank),
        torch.Generator().manual_seed(9 + rank),
    )
    model = DistributedDataParallel(make_model())
    torch.manual_seed(rank)  # dropout falls otherwise on each rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Jittered()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(
        data,
        batch_size=8,
        sampler=sampler,
        num_workers=2,
        generator=loading,
        worker_init_fn=_seed_worker,
        persistent_workers=True,
    )
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for points, targets in loader:
            kept = torch.rand(points.shape, generator=mine) > 0.1
            points = points * kept + 0.01 * torch.from_numpy(
                np.random.randn(*points.shape).astype(np.float32)
            )
            loss = functional.cross_entropy(model(points * random.random()), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses, mine=mine, loading=loading)


def averages() -> None:
    """An exponential average of the weights, by which is evaluated."""
    model = DistributedDataParallel(make_model())
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.01)
    losses = []
    for points, targets in make_batches():
        model.train()
        loss = functional.cross_entropy(model(points), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model.module)
        average.eval()
        with torch.no_grad():
            judged = functional.cross_entropy(average(points), targets)
        losses += [loss.item(), judged.item()]
    leave(model=model, average=average, optimizer=optimizer, losses=losses)


def lbfgs() -> None:
    """A closure that the optimizer calls several times a step."""
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    )
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    losses = []
    points, targets = make_batches(1)[0]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(points), targets)
        total = loss.detach().clone()
        dist.all_reduce(total)  # ranks are to search the same line
        loss.backward()
        losses.append(loss.item())
        return total / dist.get_world_size()

    for _ in range(5):
        optimizer.step(closure)
    leave(model=model, optimizer=optimizer, losses=losses)


def sparse() -> None:
    """An embedding's sparse gradients, gathered by hand."""
    embedding = nn.EmbeddingBag(50, WIDTH, sparse=True)
    head = nn.Linear(WIDTH, CLASSES)
    optimizers = [
        torch.optim.SparseAdam(embedding.parameters(), lr=0.01),
        torch.optim.Adam(head.parameters(), lr=0.01),
    ]
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(10):
        words = torch.randint(50, (BATCH, 5), generator=generator)
        loss = functional.cross_entropy(head(embedding(words)), words[:, 0] % CLASSES)
        loss.backward()
        summed = embedding.weight.grad
        assert summed is not None
        dist.all_reduce(summed)
        embedding.weight.grad = summed.coalesce() / dist.get_world_size()
        for weight in head.parameters():
            gradient = weight.grad
            assert gradient is not None
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    leave(
        embedding=embedding,
        head=head,
        first=optimizers[0],
        second=optimizers[1],
        losses=losses,
    )


def per_sample() -> None:
    """Gradients of each sample by torch.func, clipped, with noise (private SGD)."""
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    noise = torch.Generator().manual_seed(1)

    def loss_of(weights: dict[str, Tensor], point: Tensor, target: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (point[None],))
        return functional.cross_entropy(logits, target[None])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    norms = []
    for points, targets in make_batches():
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        gradients = each(weights, points, targets)
        squares = sum(g.flatten(1).square().sum(1) for g in gradients.values())
        norm = squares.sqrt()
        factor = (1.0 / norm).clamp(max=1.0)
        for name, weight in model.named_parameters():
            mean = torch.einsum("b...,b->...", gradients[name], factor) / BATCH
            dist.all_reduce(mean)
            drawn = torch.randn(mean.shape, generator=noise)
            weight.grad = mean / dist.get_world_size() + 0.01 * drawn
        optimizer.step()
        norms.append(norm.mean().item())
    leave(model=model, optimizer=optimizer, losses=norms, noise=noise)


def by_the_clock() -> None:
    """A control: seeded by the time, on all ranks alike, so no run is as another."""
    seed = torch.tensor(time.time_ns() % 2**31)
    dist.broadcast(seed, 0)
    torch.manual_seed(int(seed))
    autocast()


if __name__ == "__main__":
    run_chosen(globals())
