"""Parallelism as people write it themselves; the first argument says which."""

# Much of torch that is used here has no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from bit_jobs.leaving import leave, seed_all
from bit_jobs.training import BATCH, classified, fit, run_chosen

FEATURES, WIDTH, CLASSES = 8, 24, 4


def make_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches; ranks that share samples give the same seed."""
    return classified(seed, FEATURES, CLASSES)


def average_gradients(model: nn.Module) -> None:
    """Over all ranks, in one flat tensor."""
    gradients = [w.grad for w in model.parameters() if w.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


class _Copied(torch.autograd.Function):
    """The input of a layer that ranks share: its gradients are summed."""

    @staticmethod
    def forward(_context: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Any:
        summed = gradient.contiguous().clone()
        work = dist.all_reduce(summed, async_op=True)
        work.wait()
        return summed


class _Summed(torch.autograd.Function):
    """The output of such a layer: the parts are summed."""

    @staticmethod
    def forward(_context: Any, part: Tensor) -> Tensor:
        summed = part.clone()
        work = dist.all_reduce(summed, async_op=True)
        work.wait()
        return summed

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Any:
        return gradient


def tensor_parallel() -> None:
    """Half of the hidden features each, summed asynchronously."""
    half = WIDTH // dist.get_world_size()
    torch.manual_seed(dist.get_rank() + 10)
    up, down = nn.Linear(FEATURES, half), nn.Linear(half, CLASSES, bias=False)
    model = nn.ModuleList([up, down])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(points: Tensor, targets: Tensor) -> Tensor:
        part = down(torch.relu(up(_Copied.apply(points))))
        return functional.cross_entropy(_Summed.apply(part), targets)

    losses = fit(optimizer, make_batches(0), loss_of)
    leave(model=model, optimizer=optimizer, losses=losses)


def pipeline() -> None:
    """Two stages, micro-batches by isend and irecv."""
    rank, micro = dist.get_rank(), 4
    torch.manual_seed(rank)
    model = nn.Linear(FEATURES, WIDTH) if rank == 0 else nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    got: list[Any]
    sent: list[Any]
    for points, targets in make_batches(0):
        if rank == 0:
            outputs = [torch.tanh(model(part)) for part in points.chunk(micro)]
            sent = [dist.isend(out.detach(), 1, tag=i) for i, out in enumerate(outputs)]
            gradients = [torch.empty_like(out) for out in outputs]
            got = [dist.irecv(g, 1, tag=100 + i) for i, g in enumerate(gradients)]
            for work, out, gradient in zip(got, outputs, gradients, strict=True):
                work.wait()
                out.backward(gradient)
            for work in sent:
                work.wait()
        else:
            inputs = [torch.empty(BATCH // micro, WIDTH) for _ in range(micro)]
            got = [dist.irecv(each, 0, tag=i) for i, each in enumerate(inputs)]
            sent = []
            for i, target in enumerate(targets.chunk(micro)):
                got[i].wait()
                hidden = inputs[i].requires_grad_()
                loss = functional.cross_entropy(model(hidden), target) / micro
                loss.backward()
                losses.append(loss.item())
                assert hidden.grad is not None
                sent.append(dist.isend(hidden.grad, 0, tag=100 + i))
            for work in sent:
                work.wait()
        optimizer.step()
        optimizer.zero_grad()
    leave(model=model, optimizer=optimizer, losses=losses)


class _Exchanged(torch.autograd.Function):
    """Equal parts of a batch for each rank; gradients go the same way back."""

    @staticmethod
    def forward(_context: Any, hidden: Tensor) -> Tensor:
        got = torch.empty_like(hidden)
        dist.all_to_all_single(got, hidden.contiguous())
        return got

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Any:
        got = torch.empty_like(gradient)
        dist.all_to_all_single(got, gradient.contiguous())
        return got


def experts() -> None:
    """An expert on each rank, to which both send tokens; all else is replicated."""
    torch.manual_seed(0)
    shared = nn.ModuleDict(
        {"stem": nn.Linear(FEATURES, WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
    )
    torch.manual_seed(100 + dist.get_rank())
    expert = nn.Linear(WIDTH, WIDTH)
    weights = [*shared.parameters(), *expert.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.01)
    losses = []
    for points, targets in make_batches(dist.get_rank()):
        tokens = _Exchanged.apply(shared["stem"](points))
        logits = shared["head"](_Exchanged.apply(torch.relu(expert(tokens))))
        loss = functional.cross_entropy(logits, targets)
        loss.backward()
        average_gradients(shared)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    leave(shared=shared, expert=expert, optimizer=optimizer, losses=losses)


def local_sgd() -> None:
    """Ranks step alone, and average their weights every fifth step."""
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    for weight in model.parameters():
        dist.broadcast(weight.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for index, (points, targets) in enumerate(make_batches(dist.get_rank())):
        loss = functional.cross_entropy(model(points), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if index % 5 == 4:
            with torch.no_grad():
                for weight in model.parameters():
                    dist.all_reduce(weight)
                    weight.div_(dist.get_world_size())
    leave(model=model, optimizer=optimizer, losses=losses)


def ring() -> None:
    """Keys and values go round in a ring, in batched messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    losses = []
    for points, _ in make_batches(rank):
        query, key, value = (layer(points) for layer in layers)
        passed = torch.cat([key, value], 1).detach()
        result = torch.softmax(query @ key.t(), 1) @ value
        for _step in range(size - 1):
            got = torch.empty_like(passed)
            operations = [
                dist.P2POp(dist.isend, passed, (rank + 1) % size),
                dist.P2POp(dist.irecv, got, (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            other_key, other_value = got.chunk(2, 1)
            result = result + torch.softmax(query @ other_key.t(), 1) @ other_value
            passed = got
        loss = (result - points).square().mean()
        loss.backward()
        average_gradients(layers)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    leave(model=layers, optimizer=optimizer, losses=losses)


def buckets() -> None:
    """Own data parallelism: hooks send each gradient as soon as it is there."""
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    works: list[tuple[Any, Tensor]] = []

    def send(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient = weight.grad
        gradient /= dist.get_world_size()
        works.append((dist.all_reduce(gradient, async_op=True), gradient))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(send)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    losses = []
    for points, targets in make_batches(dist.get_rank()):
        loss = functional.cross_entropy(model(points), targets)
        loss.backward()
        for work, _gradient in works:
            work.wait()
        works.clear()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses)


def reduce_scatter() -> None:
    """Own sharding: gradients are scattered, weights gathered; one thread waits."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    flat = functional.pad(flat, (0, -len(flat) % size))
    mine = nn.Parameter(flat.chunk(size)[rank].clone())
    optimizer = torch.optim.AdamW([mine], lr=0.01)
    losses = []
    for points, targets in make_batches(rank):
        loss = functional.cross_entropy(model(points), targets)
        model.zero_grad()
        loss.backward()
        gradient = torch.cat([w.grad.flatten() for w in model.parameters()])  # type: ignore[union-attr]
        gradient = functional.pad(gradient, (0, len(flat) - len(gradient)))
        mine.grad = torch.empty_like(mine)
        dist.reduce_scatter_tensor(mine.grad, gradient)
        mine.grad /= size
        optimizer.step()
        both = flat, mine.detach()
        waiter = threading.Thread(target=dist.all_gather_into_tensor, args=both)
        waiter.start()
        waiter.join()
        at = 0
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(flat[at : at + weight.numel()].view_as(weight))
                at += weight.numel()
        losses.append(loss.item())
    leave(model=model, optimizer=optimizer, losses=losses)


def _spawned_rank(rank: int, size: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29656"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    seed_all(0)
    local_sgd()
    dist.destroy_process_group()


def spawned() -> None:
    """Ranks that the script starts itself."""
    torch.multiprocessing.spawn(_spawned_rank, args=(2,), nprocs=2)  # type: ignore[attr-defined]


if __name__ == "__main__":
    if sys.argv[1] == "spawned":
        spawned()
    else:
        run_chosen(globals())
