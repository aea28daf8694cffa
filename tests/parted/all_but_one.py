"""All ranks but the third average the gradients; it is at the barrier behind that."""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 4
CODE = "DD108"
CULPRITS = [2]


def main() -> None:
    """Train, and leave a rank out."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        loss = model(torch.randn(2, 3, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank != 2:  # culprit
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        dist.barrier()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
