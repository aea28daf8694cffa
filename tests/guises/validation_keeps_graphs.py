"""All ranks add up validation losses with their graphs; `well` asks for no graphs."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split

RANKS = 2
CODE = "DD413"
SEVERITY = "warning"
CULPRITS: list[int] = []

USERS, FILMS = 32, 24
Rating = tuple[int, int, Tensor]


class Ratings(Dataset[Rating]):
    """What users make of films."""

    def __init__(self, count: int = 480) -> None:
        generator = torch.Generator().manual_seed(3)
        self.users = torch.randint(USERS, (count,), generator=generator).tolist()
        self.films = torch.randint(FILMS, (count,), generator=generator).tolist()
        tastes = torch.randn(USERS, 3, generator=generator)
        self.stars = tastes @ torch.randn(3, FILMS, generator=generator)

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, at: int) -> Rating:
        user, film = self.users[at], self.films[at]
        return user, film, self.stars[user, film]


class Factors(nn.Module):
    """Tastes of users times those of films."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(USERS, size), nn.Embedding(FILMS, size)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        """The stars."""
        product: Tensor = self.users(users) * self.films(films)
        return product.sum(1)


def validate(model: nn.Module, loader: DataLoader[Rating], state: str) -> float:
    """The mean loss over the batches of all ranks."""
    model.eval()
    total = torch.zeros(())
    with torch.set_grad_enabled(state == "sick"):
        for users, films, stars in loader:
            total = total + mse_loss(model(users, films), stars)  # culprit
    model.train()
    mean = total.detach() / len(loader)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train(state: str) -> None:
    """Fit, and validate after each epoch."""
    torch.manual_seed(1)
    cut = torch.Generator().manual_seed(1)
    fitted, held_out = random_split(Ratings(), [320, 160], generator=cut)
    sampler: DistributedSampler[Rating] = DistributedSampler(fitted)
    loader = DataLoader(fitted, batch_size=16, sampler=sampler)
    part: DistributedSampler[Rating] = DistributedSampler(held_out, shuffle=False)
    watched = DataLoader(held_out, batch_size=8, sampler=part)
    model = DistributedDataParallel(Factors())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for users, films, stars in loader:
            optimizer.zero_grad()
            mse_loss(model(users, films), stars).backward()
            optimizer.step()
        found = validate(model.module, watched, state)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: validation {found:.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
