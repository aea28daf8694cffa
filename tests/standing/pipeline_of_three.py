"""A pipeline of three stages on four ranks: the last one gets nothing."""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 4
VERDICT = "sick"
CODE = "DD112"
CULPRITS = [2]

STAGES = 3


def main() -> None:
    """Train, a stage on each of three ranks."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for _ in range(20):
        if rank == 0:
            out = stage(torch.randn(4, 8))
        else:
            got = torch.empty(4, 8)
            dist.recv(got, rank - 1)
            got.requires_grad_()
            out = stage(got)
        if rank < STAGES - 1:
            dist.send(out.detach(), rank + 1)
            grad = torch.empty(4, 8)
            dist.recv(grad, rank + 1)
            out.backward(grad)
        else:
            out.pow(2).mean().backward()
        if rank:
            assert got.grad is not None
            dist.send(got.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
