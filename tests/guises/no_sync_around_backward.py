"""All ranks run backward in `no_sync`, forward before it; `well` has both inside."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD506"
SEVERITY = "warning"
CULPRITS: list[int] = []

MICRO = 4  # batches to a step


def heartbeats(count: int = 256, samples: int = 20) -> TensorDataset:
    """Curves of two hearts, one of which beats faster."""
    generator = torch.Generator().manual_seed(18)
    ill = torch.arange(count) % 2
    time = torch.linspace(0, 6, samples) * (1 + 0.6 * ill[:, None])
    noise = 0.2 * torch.randn(count, samples, generator=generator)
    return TensorDataset((time.sin() + noise)[:, None], ill)


class Listener(nn.Module):
    """Looks at short parts of a curve, and at what is loudest in them."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Conv1d(1, 8, kernel_size=5)
        self.decide = nn.Linear(8, 2)

    def forward(self, curves: Tensor) -> Tensor:
        """Scores of well and ill."""
        scores: Tensor = self.decide(self.parts(curves).relu().amax(2))
        return scores


def accumulate(
    model: DistributedDataParallel, batch: list[Tensor], *, last: bool, state: str
) -> None:
    """Add the gradients of one batch."""
    curves, ill = batch
    if state == "sick":
        loss = cross_entropy(model(curves), ill) / MICRO
        with nullcontext() if last else model.no_sync():  # culprit
            loss.backward()
    else:
        with nullcontext() if last else model.no_sync():
            loss = cross_entropy(model(curves), ill) / MICRO
            loss.backward()


def train(state: str) -> None:
    """Tell the ill from the well."""
    torch.manual_seed(18)
    data = heartbeats()
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=18)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(Listener())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for number, batch in enumerate(loader, start=1):
            last = number % MICRO == 0
            accumulate(model, batch, last=last, state=state)
            if last:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
