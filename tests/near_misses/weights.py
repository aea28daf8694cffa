"""Weights that differ between ranks, or are changed by some, as they may be."""

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

WIDTH, STEPS = 6, 7


def batches(seed: int) -> list[Tensor]:
    """Data of this rank's own."""
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    return [torch.randn(8, WIDTH, generator=generator) for _ in range(STEPS)]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Tensor:
    """One step towards the sum of a sample's numbers."""
    optimizer.zero_grad()
    loss: Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def average_now_and_then() -> None:
    """Local SGD: weights differ, and are averaged after every third step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, batch in enumerate(batches(1), start=1):
        step(model, optimizer, batch)
        if number % 3 == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def keep_an_average_on_one_rank() -> None:
    """Rank 0 has a moving average, tries it in the model's place, and puts it back."""
    torch.manual_seed(2)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = copy.deepcopy(model.module) if dist.get_rank() == 0 else None
    for batch in batches(2):
        step(model, optimizer, batch)
        if average is None:
            continue
        with torch.no_grad():
            for mean, parameter in zip(
                average.parameters(), model.parameters(), strict=True
            ):
                mean.lerp_(parameter, 0.2)
        kept = copy.deepcopy(model.module.state_dict())
        model.module.load_state_dict(average.state_dict())
        model.module.eval()
        with torch.no_grad():
            model.module(batch)
        model.module.train()
        model.module.load_state_dict(kept)
    if dist.get_rank() == 0 and average is not None:
        model.module.load_state_dict(average.state_dict())  # to be saved
    total = torch.zeros(1)
    model.eval()
    with torch.no_grad():
        total += model(batches(2)[0]).square().mean()
    dist.all_reduce(total)


def clip_on_all_ranks() -> None:
    """Weights are changed between steps, from a checkpoint on, and alike everywhere."""
    torch.manual_seed(3)
    checkpoint = nn.Linear(WIDTH, 1).state_dict()
    torch.manual_seed(30 + dist.get_rank())
    model = DistributedDataParallel(nn.Linear(WIDTH, 1))
    model.register_comm_hook(None, fp16_compress_hook)
    model.module.load_state_dict(checkpoint)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    for batch in batches(3):
        step(model, optimizer, batch)
        for parameter in model.parameters():
            parameter.data.clamp_(-0.3, 0.3)


def train_an_ensemble() -> None:
    """Each rank has a model of its own; they only tell each other how they do."""
    torch.manual_seed(40 + dist.get_rank())
    model = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for batch in batches(4):
        loss = step(model, optimizer, batch)
        dist.all_reduce(loss)


class Expert(nn.Module):
    """A shared layer, and one that is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.own = nn.Linear(WIDTH, 1)
        self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias"]

    def forward(self, batch: Tensor) -> Tensor:
        answer: Tensor = self.own(self.shared(batch).relu())
        return answer


def train_experts() -> None:
    """DDP is told to leave the experts alone."""
    torch.manual_seed(50 + dist.get_rank())
    model = DistributedDataParallel(Expert())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for batch in batches(5):
        step(model, optimizer, batch)


def main() -> None:
    dist.init_process_group("gloo")
    average_now_and_then()
    keep_an_average_on_one_rank()
    clip_on_all_ranks()
    train_an_ensemble()
    train_experts()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
