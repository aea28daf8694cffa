"""DDP with communication hooks: compressed, of low rank, and in two levels by hand.

Run it with

    torchrun --standalone --nproc-per-node 4 hooked_ddp.py

It trains a model with each hook, and compares what they reach with plain DDP.
"""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH, CLASSES = 20, 64, 5

Loader = DataLoader[tuple[Tensor, ...]]


class TwoLevels:
    """Averages a bucket within each node first, and then between their leaders.

    Between nodes goes what one rank of each node has, not what all have.
    """

    def __init__(self, ranks_per_node: int) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.leader = rank - rank % ranks_per_node
        # All ranks make all groups, in one order.
        nodes = [
            dist.new_group(range(first, min(first + ranks_per_node, world_size)))
            for first in range(0, world_size, ranks_per_node)
        ]
        self.node = nodes[rank // ranks_per_node]
        self.leaders = dist.new_group(range(0, world_size, ranks_per_node))

    def hook(self, _state: object, bucket: dist.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
        """Sum up, divide once, and hand out."""
        buffer = bucket.buffer()
        dist.reduce(buffer, dst=self.leader, group=self.node)
        if dist.get_rank() == self.leader:
            dist.all_reduce(buffer, group=self.leaders)
            buffer /= dist.get_world_size()
        dist.broadcast(buffer, src=self.leader, group=self.node)
        done: Future[Tensor] = Future()
        done.set_result(buffer)
        return done


def no_hook(_model: DistributedDataParallel, _args: argparse.Namespace) -> None:
    """What DDP does by itself."""


def halved(model: DistributedDataParallel, _args: argparse.Namespace) -> None:
    """Gradients travel as float16."""
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def low_rank(model: DistributedDataParallel, args: argparse.Namespace) -> None:
    """Gradients travel as two narrow matrices, after some steps without."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=args.exact_steps,
        min_compression_rate=1,
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def two_levels(model: DistributedDataParallel, args: argparse.Namespace) -> None:
    """Gradients are summed up in each node first."""
    model.register_comm_hook(None, TwoLevels(args.ranks_per_node).hook)


HOOKS: dict[str, Callable[[DistributedDataParallel, argparse.Namespace], None]] = {
    "none": no_hook,
    "fp16": halved,
    "powersgd": low_rank,
    "two-levels": two_levels,
}


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Points that a fixed map, the same for all seeds, sorts into classes."""
    fixed = torch.Generator().manual_seed(0)
    sorting = torch.randn(FEATURES, CLASSES, generator=fixed)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(points, (points @ sorting).argmax(dim=1))


def train(
    name: str, batches: Loader, args: argparse.Namespace, device: torch.device
) -> float:
    """Train with a hook; gives the mean loss of the last epoch over all ranks."""
    torch.manual_seed(args.seed)
    layers = [nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = DistributedDataParallel(
        nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        # PowerSGD goes on in callbacks, which would overtake a second bucket.
        bucket_cap_mb=25 if name == "powersgd" else args.bucket_kib / 1024,
        gradient_as_bucket_view=True,
    )
    HOOKS[name](model, args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loss_and_count = torch.zeros(2, device=device)
    for epoch in range(args.epochs):
        assert isinstance(batches.sampler, DistributedSampler)
        batches.sampler.set_epoch(epoch)
        loss_and_count.zero_()
        for points, classes in batches:
            points, classes = points.to(device), classes.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), classes)
            loss.backward()
            optimizer.step()
            loss_and_count[0] += loss.detach() * len(points)
            loss_and_count[1] += len(points)
    dist.all_reduce(loss_and_count)
    return float(loss_and_count[0] / loss_and_count[1])


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train with communication hooks.")
    parser.add_argument("--hooks", nargs="+", choices=HOOKS, default=[*HOOKS])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--bucket-kib", type=float, default=16)
    parser.add_argument("--exact-steps", type=int, default=4, help="before PowerSGD")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    data = make_dataset(512, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    batches = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    for name in args.hooks:
        loss = train(name, batches, args, device)
        if dist.get_rank() == 0:
            print(f"{name}: loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
