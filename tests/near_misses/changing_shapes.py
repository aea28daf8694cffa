"""Shapes change from step to step, alike on all ranks; objects differ by rank.

The contrastive loss gathers embeddings of padded size, and objects of any size go
through the collectives for objects.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn import functional

RANKS = 2

WIDTH = 8


def agree_on_length(own: int) -> int:
    """The length of the longest text of any rank, to which all pad."""
    longest = torch.tensor([own])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return int(longest.item())


def contrast(embeddings: Tensor) -> Tensor:
    """Loss over the texts of all ranks; its gradient flows back through the ranks."""
    everything = torch.cat(functional.all_gather(embeddings))
    return (embeddings @ everything.T).logsumexp(1).mean()


def train(model: nn.Module) -> None:
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        length = agree_on_length(3 + 2 * step + rank)
        texts = torch.randn(length, WIDTH)
        optimizer.zero_grad()
        torch.autograd.backward(contrast(model(texts)))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        optimizer.step()


def exchange_tokens() -> Tensor:
    """Each rank sends another number of tokens to each; the counts go first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.tensor([1 + rank + 2 * other for other in range(size)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    tokens = torch.full((int(sent.sum()), WIDTH), float(rank))
    routed = torch.empty(int(received.sum()), WIDTH)
    dist.all_to_all_single(routed, tokens, received.tolist(), sent.tolist())
    return routed


def collect_predictions() -> list[str]:
    """Texts of any length, from all to all, to rank 0, and back from rank 0."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = [f"sentence {n}" * (1 + 3 * rank) for n in range(2 + 5 * rank)]
    everyones: list[list[str]] = [[] for _ in range(size)]
    dist.all_gather_object(everyones, mine)
    dist.gather_object(mine, everyones if rank == 0 else None, dst=0)
    chosen = [everyones[0], {"best": 0.5}] if rank == 0 else [None, None]
    dist.broadcast_object_list(chosen, src=0)
    share: list[list[str]] = [[]]
    dist.scatter_object_list(share, everyones if rank == 0 else None, src=0)
    return share[0]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    torch.manual_seed(dist.get_rank())
    train(model)
    exchange_tokens()
    collect_predictions()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
