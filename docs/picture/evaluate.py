"""The job of watch.svg: rank 0 evaluates by itself while the others train on."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: nn.Module) -> float:
    """The loss on the whole validation set, which takes its time."""
    with torch.no_grad():
        for batch in range(600):
            loss: torch.Tensor = model(torch.randn(64, 32)).square().mean()
            time.sleep(0.1)
            if batch % 50 == 0:
                print(f"validated {batch} batches", flush=True)
    return loss.item()


def main() -> None:
    """Train, and evaluate after each epoch."""
    dist.init_process_group("gloo")
    model = nn.Linear(32, 32)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for _ in range(3):
        for _ in range(120):
            optimizer.zero_grad()
            ddp(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            time.sleep(0.02)
        if dist.get_rank() == 0:
            print(evaluate(model), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
