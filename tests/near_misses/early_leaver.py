"""All leave the job together; rank 1 is done then, and rank 0 goes on by itself.

Before that they join twice: the job for evaluation is another one than for training.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

WIDTH, EVALUATION_S, UPLOAD_S = 8, 6.0, 12.0


def join(job: str) -> None:
    """Join a job, with keys of its own in the store.

    The store keeps gloo's addresses of the job before it, which a rank that comes early
    may take for new ones (torch 2.13).
    """
    store, rank, size = next(rendezvous("env://"))
    store = PrefixStore(job, store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def train(model: nn.Module) -> None:
    join("training")
    torch.manual_seed(dist.get_rank())
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    for batch in torch.randn(5, 4, WIDTH):
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
    dist.barrier()
    del wrapped
    dist.destroy_process_group()


def evaluate(model: nn.Module) -> bool:
    """Mean score of all ranks, in a job of its own; whether this is its first rank."""
    join("evaluation")
    with torch.no_grad():
        score = model(torch.randn(64, WIDTH)).square().mean()
    dist.all_reduce(score, op=dist.ReduceOp.AVG)
    is_first = dist.get_rank() == 0
    dist.destroy_process_group()
    return is_first


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    train(model)
    if not evaluate(model):
        return
    end = time.monotonic() + EVALUATION_S
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(512, WIDTH))
    time.sleep(UPLOAD_S)


if __name__ == "__main__":
    main()
