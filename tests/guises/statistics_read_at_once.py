"""All load the statistics that rank 0 makes, unawaited; `well`: a barrier in between.

The job predicts the yield of fields from weather, which is normalised first.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD409"
CULPRITS: list[int] = []


def weather(year: int, fields: int = 96) -> Tensor:
    """Rain, sun and frost, of which each has a unit of its own."""
    drawn = torch.Generator().manual_seed(year)
    units = torch.tensor([700.0, 1900.0, 30.0])
    return units * (1 + 0.2 * torch.randn(fields, 3, generator=drawn))


def measure(file: Path) -> None:
    """Means and deviations over ten years, into a file."""
    years = torch.cat([weather(year, fields=20_000) for year in range(2010, 2020)])
    torch.save({"mean": years.mean(0), "deviation": years.std(0)}, file)


def normalised(file: Path, state: str) -> TensorDataset:
    """What the job learns from: weather around zero, and yields."""
    if dist.get_rank() == 0:
        measure(file)
    if state == "well":
        dist.barrier()
    known = torch.load(file)  # culprit
    seen = (weather(2021) - known["mean"]) / known["deviation"]
    return TensorDataset(seen, seen @ torch.tensor([[0.5], [0.3], [-0.8]]))


def main(state: str, folder: Path) -> None:
    """Fit the yields for three epochs."""
    torch.manual_seed(6)
    fields = normalised(folder / "statistics.pt", state)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(fields)
    loader = DataLoader(fields, batch_size=12, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for seen, yields in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(seen), yields).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    main(sys.argv[1], Path(shared[0]))
    dist.destroy_process_group()
