"""Large batches with LARS or LAMB under DDP.

Both scale each layer's step by a trust ratio, of the norms of its weights and of its
update. It is taken of gradients that are averaged over all ranks, so it is the same on
all of them. Run it with

    torchrun --standalone --nproc-per-node 2 trust_ratio.py --optimizer lamb
"""

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES, WIDTH = 12, 4, 32
WARM_UP_STEPS = 5

Batch = Sequence[Tensor]
"""Points, [batch, features], and their classes, [batch] int64."""


def trust_ratio(weights: Tensor, denominator: Tensor, trust: float = 1.0) -> Tensor:
    """The weights' norm over a denominator, [] each; 1 where either is 0."""
    norm = weights.norm()
    ratio = trust * norm / denominator
    return torch.where((norm > 0) & (denominator > 0), ratio, torch.ones_like(norm))


class Lars(torch.optim.Optimizer):
    """SGD with momentum at a rate for each layer (You et al. 2017, arXiv:1708.03888).

    Biases and gains, which have one dimension, take the global rate and no decay.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.9,
        decay: float = 1e-4,
        trust: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "decay": decay, "trust": trust}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Change the weights by their gradients, which are the same on all ranks."""
        assert closure is None
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                update, rate = weights.grad, group["lr"]
                if weights.dim() > 1:
                    decay, norm = group["decay"], weights.norm()
                    denominator = update.norm() + decay * norm
                    ratio = trust_ratio(weights, denominator, group["trust"])
                    update = update + decay * weights
                    rate = rate * ratio
                state = self.state[weights]
                if not state:
                    state["velocity"] = torch.zeros_like(weights)
                state["velocity"].mul_(group["momentum"]).add_(rate * update)
                weights.sub_(state["velocity"])


class Lamb(torch.optim.Optimizer):
    """Adam whose steps are scaled by layer (You et al. 2019, arXiv:1904.00962).

    Biases and gains, which have one dimension, take Adam's step and no decay.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "epsilon": epsilon, "decay": decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Change the weights by their gradients, which are the same on all ranks."""
        assert closure is None
        for group in self.param_groups:
            first_beta, second_beta = group["betas"]
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                gradient, rate = weights.grad, group["lr"]
                state = self.state[weights]
                if not state:
                    state["steps"] = 0
                    state["first"] = torch.zeros_like(weights)
                    state["second"] = torch.zeros_like(weights)
                state["steps"] += 1
                state["first"].lerp_(gradient, 1 - first_beta)
                state["second"].lerp_(gradient.square(), 1 - second_beta)
                first = state["first"] / (1 - first_beta ** state["steps"])
                second = state["second"] / (1 - second_beta ** state["steps"])
                update = first / (second.sqrt() + group["epsilon"])
                if weights.dim() > 1:
                    update = update + group["decay"] * weights
                    rate = rate * trust_ratio(weights, update.norm())
                weights.sub_(rate * update)


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Batches by windows of a size; the last window holds what is left."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    window: Sequence[Batch],
    device: torch.device,
) -> Tensor:
    """Make a step with a window of batches of one size; their mean loss, []."""
    mean_loss = torch.zeros((), device=device)
    optimizer.zero_grad()
    for number, (points, classes) in enumerate(window, start=1):
        is_last = number == len(window)
        with contextlib.nullcontext() if is_last else model.no_sync():
            logits = model(points.to(device))
            loss = functional.cross_entropy(logits, classes.to(device)) / len(window)
            loss.backward()
        mean_loss += loss.detach()
    optimizer.step()
    scheduler.step()
    return mean_loss


def clusters(samples: int, seed: int) -> TensorDataset:
    """Points around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    noise = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(3 * torch.eye(CLASSES, FEATURES)[classes] + noise, classes)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train for some epochs; the rate is for the batches of all ranks together."""
    torch.manual_seed(args.seed)
    known = clusters(352, seed=args.seed + 1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        known, seed=args.seed
    )
    batches = DataLoader(
        known, batch_size=args.batch_size, sampler=sampler, drop_last=True
    )
    network = nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )
    model = DistributedDataParallel(
        network.to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer: torch.optim.Optimizer
    if args.optimizer == "lars":
        optimizer = Lars(model.parameters(), lr=2.0 if args.lr is None else args.lr)
    else:
        optimizer = Lamb(model.parameters(), lr=0.02 if args.lr is None else args.lr)
    scheduler = LambdaLR(
        optimizer, lambda number: min(1.0, (number + 1) / WARM_UP_STEPS)
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        losses = torch.zeros(2, device=device)  # their sum, and how many
        for window in windows(batches, args.accumulate):
            losses[0] += step(model, optimizer, scheduler, window, device)
            losses[1] += 1
        dist.all_reduce(losses)
        if dist.get_rank() == 0:
            loss = float(losses[0] / losses[1])
            print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train with trust ratios.")
    parser.add_argument("--optimizer", choices=["lars", "lamb"], default="lars")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Each rank has its own GPU, or all are on the CPU.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    # train() has dropped its model: a DDP reducer freed after the process group
    # is destroyed can hang at exit (torch 2.13).
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
