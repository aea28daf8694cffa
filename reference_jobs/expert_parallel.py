"""Expert parallelism: each rank has some of the experts, and tokens travel to them.

Run it with

    torchrun --standalone --nproc-per-node 2 expert_parallel.py

A router picks an expert for each token. All-to-all brings tokens to the rank that has
it, and back. All else is data parallelism: ranks have copies, and read other samples.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, EXPERTS = 8, 4


class Exchange(torch.autograd.Function):
    """Sends rows to other ranks; gradients travel the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> Tensor:
        """Rows from all ranks, in the order of these."""
        ctx.sent, ctx.received = sent, received
        return exchange_rows(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Back to where the rows came from."""
        return exchange_rows(gradient, ctx.received, ctx.sent), None, None


exchanged: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor] = Exchange.apply


def exchange_rows(rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send each rank so many rows, and receive so many."""
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows.contiguous(), list(received), list(sent))
    return arrived


class Experts(nn.Module):
    """This rank's share of the experts, which all ranks draw whole and alike."""

    def __init__(self) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        every = [
            nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
            for _ in range(EXPERTS)
        ]
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.count = EXPERTS // ranks
        self.mine = nn.ModuleList(every[rank * self.count :][: self.count])

    def forward(self, tokens: Tensor) -> Tensor:
        """What an expert makes of each token, [tokens, width], weighted."""
        weights, choice = self.router(tokens).softmax(dim=1).max(dim=1)
        order = choice.argsort(stable=True)
        # How many go to each expert, and how many of each rank come to those here.
        going = torch.bincount(choice, minlength=EXPERTS)
        coming = torch.empty_like(going)
        dist.all_to_all_single(coming, going)
        by_rank = coming.view(-1, self.count)
        sent = going.view(-1, self.count).sum(dim=1).tolist()
        received = by_rank.sum(dim=1).tolist()
        arrived = exchanged(tokens[order], sent, received)
        # They lie by rank, and within that by expert.
        chunks = arrived.split(by_rank.flatten().tolist())
        done = [self.mine[n % self.count](rows) for n, rows in enumerate(chunks)]
        returned = exchanged(torch.cat(done), received, sent)
        back: Tensor = torch.empty_like(returned).index_copy(0, order, returned)
        out: Tensor = tokens + back * weights[:, None]
        return out


def average_gradients(model: nn.Module) -> None:
    """Mean over the ranks' samples.

    Copies are averaged over ranks. An expert has the sum over all ranks' tokens,
    which came to it, and only divides by the number of ranks.
    """
    for name, parameter in model.named_parameters():
        if parameter.grad is None:  # no token came to this expert
            parameter.grad = torch.zeros_like(parameter)
        if ".mine." not in name:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def make_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows; what becomes of them depends on the signs of two numbers in each."""
    rows = torch.randn(size, WIDTH, generator=generator)
    kind = 2 * (rows[:, 0] > 0) + (rows[:, 1] > 0).long()
    shifts = torch.arange(WIDTH) + kind[:, None]
    return rows, rows.gather(1, shifts % WIDTH)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train on this rank's part of batches that all draw alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    layers = [nn.Linear(WIDTH, WIDTH), Experts(), nn.Linear(WIDTH, WIDTH)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        inputs, targets = (
            whole.chunk(ranks)[rank].to(device)
            for whole in make_batch(args.batch_size, generator)
        )
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % 10 == 9:
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss)
            if rank == 0:
                print(f"step {step + 1}: loss {mean_loss.item() / ranks:.4f}")


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a mixture of experts.")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if EXPERTS % world_size:
        parser.error(f"{EXPERTS} experts cannot be shared by {world_size} ranks")
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
