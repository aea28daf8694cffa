"""Each rank draws a trial's rate and decay for itself; `well` seeds each trial."""

import random
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD412"
CULPRITS: list[int] = []

TRIALS, EPOCHS = 2, 2


def draw_settings() -> tuple[float, float]:
    """A point of the search space, both axes by orders of magnitude."""
    rate = 10 ** random.uniform(-3.0, -2.0)  # culprit
    decay = 10 ** random.uniform(-4.0, -2.0)  # culprit
    return rate, decay


def rides(count: int = 96) -> TensorDataset:
    """Hired bicycles by hour, temperature and rain."""
    generator = torch.Generator().manual_seed(33)
    weather = torch.rand(count, 3, generator=generator)
    hired = (weather[:, 0] * 3).sin() + weather[:, 1] - 2 * weather[:, 2]
    return TensorDataset(weather, hired)


def run_trial(trial: int, data: TensorDataset, rate: float, decay: float) -> float:
    """Train with the settings; the mean loss of the last epoch, over all ranks."""
    torch.manual_seed(trial)
    sampler: DistributedSampler[tuple[Tensor, ...]]
    sampler = DistributedSampler(data, seed=trial)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    network = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    total = torch.zeros(())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for weather, hired in loader:
            optimizer.zero_grad()
            loss = smooth_l1_loss(model(weather).flatten(), hired)
            loss.backward()
            optimizer.step()
            total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(loader) / dist.get_world_size()


def search(state: str) -> None:
    """Try some settings, and tell the best."""
    dataset = rides()
    results = []
    for trial in range(TRIALS):
        if state == "well":
            random.seed(500 + trial)
        rate, decay = draw_settings()
        results.append((run_trial(trial, dataset, rate, decay), trial, rate))
    if dist.get_rank() == 0:
        loss, trial, rate = min(results)
        sys.stdout.write(f"trial {trial} with rate {rate:.5f}: {loss:.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    search(sys.argv[1])
    dist.destroy_process_group()
