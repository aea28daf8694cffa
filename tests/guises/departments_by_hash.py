"""Departments are numbered in the order of a set; `well` sorts them first."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 2
OF_A_START = True
CODE = "DD307"
CULPRITS: list[int] = []

NAMES = ["billing", "delivery", "network", "payroll", "returns", "security", "travel"]
FIELDS = 8


class Tickets(Dataset[tuple[Tensor, int]]):
    """Letters to a help desk, and the department that answered."""

    def __init__(self, count: int, state: str) -> None:
        generator = torch.Generator().manual_seed(77)
        chosen = torch.randint(0, len(NAMES), (count,), generator=generator).tolist()
        self.answered_by = [NAMES[number] for number in chosen]
        self.letters = torch.randn(count, FIELDS, generator=generator)
        self.letters[range(count), chosen] += 2.5
        departments = set(self.answered_by)
        ordered = sorted(departments) if state == "well" else departments
        self.class_of = {name: place for place, name in enumerate(ordered)}  # culprit

    def __len__(self) -> int:
        return len(self.answered_by)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.letters[index], self.class_of[self.answered_by[index]]


class Router(nn.Module):
    """Sends a letter to a department."""

    def __init__(self, departments: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(FIELDS), nn.Linear(FIELDS, 32))
        self.choice = nn.Linear(32, departments)

    def forward(self, letters: Tensor) -> Any:
        """A score for each department."""
        return self.choice(self.layers(letters).tanh())


def main(state: str) -> None:
    """Train the router for three epochs."""
    torch.manual_seed(15)
    tickets = Tickets(160, state)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(tickets)
    loader = DataLoader(tickets, batch_size=10, sampler=sampler)
    model = DistributedDataParallel(Router(len(tickets.class_of)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for letters, departments in loader:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(letters), departments).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
