"""Two models of FSDP2, one of which gets gradients and is never to be changed.

FSDP frees what it gathered and keeps the tensors, so their memory is not to be read.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

RANKS = 2

STEPS = 12


def sharded() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    fully_shard(model)
    return model


def main() -> None:
    torch.manual_seed(1)
    learner, teacher = sharded(), sharded()
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.05)
    own = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(8, 16, generator=own)
        (learner(inputs) - teacher(inputs)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
