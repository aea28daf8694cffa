"""All ranks read the same data, and average by hand; `well` divides the data."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 4
CODE = "DD301"
CULPRITS: list[int] = []

HOURS = 12


class Load(Dataset[tuple[Tensor, Tensor]]):
    """A town's use of electricity: some hours, and the one that follows."""

    def __init__(self, count: int = 128) -> None:
        hours = torch.arange(count + HOURS, dtype=torch.float32)
        noise = torch.randn(len(hours), generator=torch.Generator().manual_seed(4))
        self.used = torch.sin(hours * torch.pi / 12) + 0.1 * noise

    def __len__(self) -> int:
        return len(self.used) - HOURS

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.used[at : at + HOURS, None], self.used[at + HOURS]


class Forecast(nn.Module):
    """Reads the hours one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.GRU(1, 10, batch_first=True)
        self.tell = nn.Linear(10, 1)

    def forward(self, hours: Tensor) -> Tensor:
        """What the next hour will be."""
        last: Tensor = self.tell(self.reader(hours)[0][:, -1])
        return last[:, 0]


def average_gradients(model: nn.Module) -> None:
    """One call for all of them."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / dist.get_world_size(), gradients)


def loader_of(load: Load, state: str) -> DataLoader[tuple[Tensor, Tensor]]:
    """Batches of eight, in another order in each epoch."""
    if state == "well":
        sampler: DistributedSampler[object] = DistributedSampler(load, seed=7)
        return DataLoader(load, batch_size=8, sampler=sampler)
    order = torch.Generator().manual_seed(7)
    return DataLoader(load, batch_size=8, shuffle=True, generator=order)  # culprit


def train(state: str) -> None:
    """A few epochs."""
    torch.manual_seed(7)
    loader = loader_of(Load(), state)
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(4):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        total = 0.0
        for hours, following in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(hours), following)
            loss.backward()
            average_gradients(model)
            optimizer.step()
            total += loss.item()
        mean, rank = total / len(loader), dist.get_rank()
        sys.stdout.write(f"rank {rank}, epoch {epoch}: loss {mean:.5f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
