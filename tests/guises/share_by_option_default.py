"""All ranks take share 0, an option's default; `well` takes that of the rank."""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD301"
CULPRITS: list[int] = []

Sampler = DistributedSampler[tuple[Tensor, ...]]


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", choices=["sick", "well"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--gpu", type=int, default=0)  # culprit
    return parser.parse_args()


def loads(count: int = 144) -> TensorDataset:
    """The load of a power grid: time of day, wind, and what is drawn."""
    generator = torch.Generator().manual_seed(61)
    hours = torch.rand(count, 1, generator=generator) * 24
    wind = torch.rand(count, 1, generator=generator)
    drawn = torch.cos(hours * 0.26) - 0.3 * wind
    return TensorDataset(torch.cat([hours / 24, wind], dim=1), drawn)


def loaders(args: argparse.Namespace) -> tuple[DataLoader[tuple[Tensor, ...]], Sampler]:
    """This rank's share of the data."""
    dataset = loads()
    place = dist.get_rank() if args.state == "well" else args.gpu
    ranks = dist.get_world_size()
    sampler: Sampler = DistributedSampler(dataset, ranks, rank=place)  # culprit
    return DataLoader(dataset, batch_size=args.batch, sampler=sampler), sampler


def main(args: argparse.Namespace) -> None:
    """Predict the load."""
    torch.manual_seed(2)
    loader, sampler = loaders(args)
    network = nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for conditions, drawn in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(conditions), drawn)
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(drawn), len(drawn)])
        schedule.step()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: {(total[0] / total[1]).item():.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(options())
    dist.destroy_process_group()
