"""Context parallelism: ring attention over a sequence of which each rank has a part.

Run it with

    torchrun --standalone --nproc-per-node 2 ring_attention.py

Keys and values go round from rank to rank, while each rank's queries stay. Softmax is
put together part by part, so that no rank ever has the whole sequence.
"""

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES, WIDTH, CONTEXT = 4, 16, 16


def rotated(part: Tensor, by: int) -> Tensor:
    """What the rank so many places before this one has; this one's goes on as far."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arrived = torch.empty_like(part)
    calls = [
        dist.P2POp(dist.isend, part.contiguous(), (rank + by) % ranks),
        dist.P2POp(dist.irecv, arrived, (rank - by) % ranks),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return arrived


class PassOn(torch.autograd.Function):
    """One step of the ring; gradients go the other way."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor) -> Tensor:
        """To the next rank."""
        return rotated(part, 1)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        """Back to the one before."""
        return rotated(gradient, -1)


passed_on: Callable[[Tensor], Tensor] = PassOn.apply


class RingAttention(nn.Module):
    """Causal attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """What each position takes from earlier ones, [batch, part, width]."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        length = hidden.shape[1]
        query, travelling = self.query(hidden), self.key_value(hidden)
        positions = torch.arange(length, device=hidden.device)
        highest = query.new_full((*query.shape[:2], 1), -math.inf)
        total, mixed = torch.zeros_like(highest), torch.zeros_like(query)
        for turn in range(ranks):
            if turn:
                travelling = passed_on(travelling)
            owner = (rank - turn) % ranks  # whose keys and values these are
            key, value = travelling.chunk(2, dim=2)
            scores = query @ key.transpose(1, 2) / math.sqrt(WIDTH)
            later = owner * length + positions > rank * length + positions[:, None]
            scores = scores.masked_fill(later, -1e9)
            higher = torch.maximum(highest, scores.amax(dim=2, keepdim=True))
            weights = (scores - higher).exp()
            kept = (highest - higher).exp()
            total = total * kept + weights.sum(dim=2, keepdim=True)
            mixed = mixed * kept + weights @ value
            highest = higher
        return mixed / total


class Model(nn.Module):
    """Attention and a feed-forward, on top of what is known of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.positions = nn.Parameter(torch.randn(CONTEXT, WIDTH) / 4)
        self.attention = RingAttention()
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()
        )
        self.head = nn.Linear(WIDTH, FEATURES)

    def forward(self, part: Tensor) -> Tensor:
        """Predictions for this rank's part, [batch, part, features]."""
        mine = self.positions.chunk(dist.get_world_size())[dist.get_rank()]
        hidden = self.embed(part) + mine
        hidden = hidden + self.attention(hidden)
        out: Tensor = self.head(hidden + self.feed_forward(hidden))
        return out


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Learn running means, of sequences that all ranks draw alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    counts = torch.arange(1, CONTEXT + 1)[:, None]
    for step in range(args.steps):
        whole = torch.randn(args.batch_size, CONTEXT, FEATURES, generator=generator)
        means = whole.cumsum(dim=1) / counts
        part = whole.chunk(ranks, dim=1)[rank].to(device)
        targets = means.chunk(ranks, dim=1)[rank].to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(part), targets)
        loss.backward()
        # Each rank has the gradient of the loss of its part of the sequence.
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= ranks
        optimizer.step()
        if step % 10 == 9:
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss)
            if rank == 0:
                print(f"step {step + 1}: loss {mean_loss.item() / ranks:.4f}")


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train with context parallelism.")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
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
