"""What DDP is asked for by options: accumulation, checkpointing, unused parameters.

The branches that run differ by rank, and so do the parameters without a gradient.
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

RANKS = 2

WIDTH, ACCUMULATION = 8, 3


class Checkpointed(nn.Module):
    """Two blocks that are computed again in the backward pass, with shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(2):
            inputs = checkpoint(self.block, inputs, use_reentrant=False)
        return inputs


class Experts(nn.Module):
    """Each sample goes to the expert that its kind asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, inputs: Tensor, kind: int) -> Tensor:
        hidden: Tensor = self.experts[kind](self.stem(inputs))
        return hidden


def accumulate() -> None:
    """Seven micro-batches in windows of three; the last window is short."""
    model = DistributedDataParallel(
        nn.Linear(WIDTH, WIDTH), gradient_as_bucket_view=True, bucket_cap_mb=1
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01
    )
    batches = torch.randn(7, 4, WIDTH)
    for index, batch in enumerate(batches, start=1):
        steps = index % ACCUMULATION == 0 or index == len(batches)
        with nullcontext() if steps else model.no_sync():
            model(batch).square().mean().div(ACCUMULATION).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.consolidate_state_dict(to=0)


def checkpoint_activations() -> None:
    model = DistributedDataParallel(Checkpointed(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.randn(4, 4, WIDTH):
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()


def leave_parameters_out() -> None:
    """The ranks use different experts in each step, and one is used by none."""
    model = DistributedDataParallel(Experts(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(torch.randn(4, 4, WIDTH)):
        optimizer.zero_grad()
        model(batch, (step + dist.get_rank()) % 2).square().mean().backward()
        optimizer.step()


def compress_gradients() -> None:
    """PowerSGD issues collectives out of the callbacks of others."""
    model = DistributedDataParallel(nn.Linear(WIDTH, 4 * WIDTH))
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.randn(5, 4, WIDTH):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    accumulate()
    checkpoint_activations()
    leave_parameters_out()
    compress_gradients()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
