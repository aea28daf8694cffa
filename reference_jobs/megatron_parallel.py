"""Tensor parallelism by hand, as Megatron-LM has it; sequence parallelism if asked.

Run it with

    torchrun --standalone --nproc-per-node 2 megatron_parallel.py --sequence

Each rank has some columns of ``up`` and the same rows of ``down``. What stands between
such layers is computed by all ranks alike, or of a part of the sequence by each.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES, WIDTH, CONTEXT, BLOCKS = 6, 16, 8, 2


class Copy(torch.autograd.Function):
    """From all ranks alike into split layers: gradients of the parts add up."""

    @staticmethod
    def forward(_ctx: Any, whole: Tensor) -> Tensor:
        """Give it on."""
        return whole.view_as(whole)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Add what the ranks' parts say."""
        summed = gradient.clone()
        dist.all_reduce(summed)
        return summed


class Reduce(torch.autograd.Function):
    """From split layers to all ranks alike: the parts of a sum are added."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor) -> Tensor:
        """Add them."""
        summed = part.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Each part has the gradient of the sum."""
        return gradient


def gathered(part: Tensor) -> Tensor:
    """All ranks' parts of the sequence, [context, batch, width], one behind another."""
    shape = (part.shape[0] * dist.get_world_size(), *part.shape[1:])
    whole = part.new_empty(shape)
    dist.all_gather_into_tensor(whole, part.contiguous())
    return whole


def scattered(whole: Tensor) -> Tensor:
    """The sum over the ranks, of which each keeps its part of the sequence."""
    part = whole.new_empty((whole.shape[0] // dist.get_world_size(), *whole.shape[1:]))
    dist.reduce_scatter_tensor(part, whole.contiguous())
    return part


class Gather(torch.autograd.Function):
    """As `Copy`, from parts of the sequence."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor) -> Tensor:
        """Gather the sequence."""
        return gathered(part)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Add, and keep this rank's part."""
        return scattered(gradient)


class Scatter(torch.autograd.Function):
    """As `Reduce`, to parts of the sequence."""

    @staticmethod
    def forward(_ctx: Any, whole: Tensor) -> Tensor:
        """Add, and keep this rank's part."""
        return scattered(whole)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Gather what the parts say."""
        return gathered(gradient)


Enter = Callable[[Tensor], Tensor]


class SplitFeedForward(nn.Module):
    """This rank's part of two layers, which all ranks draw whole and alike."""

    def __init__(self, *, sequence: bool) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.up = nn.Parameter(up.weight.detach().chunk(ranks)[rank].clone())
        self.up_bias = nn.Parameter(up.bias.detach().chunk(ranks)[rank].clone())
        self.down = nn.Parameter(down.weight.detach().chunk(ranks, 1)[rank].clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())
        self.enter: Enter = Gather.apply if sequence else Copy.apply
        self.leave: Enter = Scatter.apply if sequence else Reduce.apply

    def forward(self, hidden: Tensor) -> Tensor:
        """What is added to each position."""
        split = nn.functional.linear(self.enter(hidden), self.up, self.up_bias)
        summed = self.leave(nn.functional.linear(nn.functional.gelu(split), self.down))
        return summed + self.down_bias  # once, and not by each rank before the sum


class Block(nn.Module):
    """A norm, and the feed-forward behind it."""

    def __init__(self, *, sequence: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.feed_forward = SplitFeedForward(sequence=sequence)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer."""
        update: Tensor = self.feed_forward(self.norm(hidden))
        return hidden + update


def sum_gradients_of_parts(model: nn.Module) -> None:
    """Add gradients of parameters that each rank has used for its part of the sequence.

    Split layers have seen the whole sequence.
    """
    for name, parameter in model.named_parameters():
        if ".up" not in name and not name.endswith(".down"):
            dist.all_reduce(parameter.grad)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Learn to move each value of a sequence on, from batches that all draw alike."""
    torch.manual_seed(args.seed)
    blocks = [Block(sequence=args.sequence) for _ in range(BLOCKS)]
    first, last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)
    model = nn.Sequential(first, *blocks, last).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(args.steps):
        inputs = torch.randn(CONTEXT, 16, FEATURES, generator=generator).to(device)
        targets = inputs.roll(1, dims=2) * inputs
        if args.sequence:
            inputs, targets = inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        if args.sequence:
            loss = loss / ranks  # the mean over the sequence is the sum over its parts
        loss.backward()
        if args.sequence:
            sum_gradients_of_parts(model)
        optimizer.step()
        if step % 10 == 9:
            shown = loss.detach().clone()
            if args.sequence:
                dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step + 1}: loss {shown.item():.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train with tensor parallelism.")
    parser.add_argument("--sequence", action="store_true", help="split that, too")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if CONTEXT % world_size:
        parser.error(f"a sequence of {CONTEXT} has no {world_size} equal parts")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
