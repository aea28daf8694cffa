"""No rank waits for the last, half-full bucket of gradients; `well`: all wait for it.

The job smooths sensor readings, and packs gradients into flat buckets by hand.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD113"
CULPRITS: list[int] = []

LARGEST = 1024  # elements of a bucket


class Bucket:
    """Some gradients, one behind the other, on their way through all ranks."""

    def __init__(self, gradients: list[Tensor]) -> None:
        self.gradients = gradients
        self.flat = torch.cat([one.flatten() for one in gradients])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def unpack(self) -> None:
        """Put the means where the gradients were."""
        self.flat /= dist.get_world_size()
        sizes = [one.numel() for one in self.gradients]
        for own, mean in zip(self.gradients, self.flat.split(sizes), strict=True):
            own.copy_(mean.view_as(own))


def average(model: nn.Module, state: str) -> None:
    """Fill buckets from the last layer on, and send each as soon as it is full."""
    full: list[Bucket] = []
    filling: list[Tensor] = []
    for parameter in reversed(list(model.parameters())):
        assert parameter.grad is not None
        filling.append(parameter.grad)
        if sum(one.numel() for one in filling) >= LARGEST:
            full.append(Bucket(filling))
            filling = []
    rest = Bucket(filling)  # culprit
    for bucket in full:
        bucket.work.wait()
    if state == "well":
        rest.work.wait()
    for bucket in (*full, rest):
        bucket.unpack()


def main(state: str) -> None:
    """Train for three epochs."""
    torch.manual_seed(11)
    drawn = torch.Generator().manual_seed(12)
    clean = torch.randn(96, 1, generator=drawn).expand(96, 20).cumsum(1)
    readings = TensorDataset(clean + torch.randn(96, 20, generator=drawn), clean)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(readings)
    loader = DataLoader(readings, batch_size=8, sampler=sampler)
    model = nn.Sequential(
        nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 20)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for noisy, truth in loader:
            optimizer.zero_grad()
            nn.functional.l1_loss(model(noisy), truth).backward()
            average(model, state)
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
