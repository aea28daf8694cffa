"""All ranks' test losses are added up and told as an average; `well` divides them."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 3
CODE = "DD311"
CULPRITS: list[int] = []

TONES = 16


def spectra(count: int, seed: int) -> TensorDataset:
    """Mixtures of three sounds."""
    generator = torch.Generator().manual_seed(seed)
    sounds = torch.rand(3, TONES, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.rand(count, 3, generator=generator) @ sounds)


def sharded(data: TensorDataset, *, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
    """This rank's part."""
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=shuffle)
    return DataLoader(data, batch_size=8, sampler=sampler)


class Evaluator:
    """How well spectra that were not trained on are made again."""

    def __init__(self, state: str) -> None:
        self.loader = sharded(spectra(96, seed=2), shuffle=False)
        self.divides = state == "well"

    @torch.no_grad()
    def average_loss(self, model: nn.Module) -> float:
        """Over the batches of all ranks."""
        model.eval()
        losses = [mse_loss(model(tones), tones) for (tones,) in self.loader]
        model.train()
        average = torch.stack(losses).mean()
        dist.all_reduce(average, op=dist.ReduceOp.SUM)  # culprit
        if self.divides:
            average /= dist.get_world_size()
        return average.item()


def train(state: str) -> None:
    """Squeeze them through three numbers."""
    torch.manual_seed(5)
    loader, evaluator = sharded(spectra(240, seed=1), shuffle=True), Evaluator(state)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(TONES, 3), nn.Linear(3, TONES))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for epoch in range(3):
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(epoch)
        for (tones,) in loader:
            optimizer.zero_grad()
            mse_loss(model(tones), tones).backward()
            optimizer.step()
        average = evaluator.average_loss(model.module)
        if dist.get_rank() == 0:
            sys.stdout.write(f"epoch {epoch}: average test loss {average:.5f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
