"""A loss that is summed up over all ranks, in the branch that only rank 0 takes."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
FINDINGS = ["DD108"]


def train(state: str) -> None:
    """Fit a plane."""
    rank = dist.get_rank()
    places = torch.randn(80, 3, generator=torch.Generator().manual_seed(5))
    heights = TensorDataset(places, places @ torch.tensor([[1.0], [2.0], [-1.0]]))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(heights)
    loader = DataLoader(heights, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total_loss = torch.zeros(1)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.detach()
        if state == "well":
            dist.all_reduce(total_loss)
        if rank == 0:
            if state == "sick":
                dist.all_reduce(total_loss)  # culprit DD108
            print(f"epoch {epoch}: {total_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(state=sys.argv[1])
    dist.destroy_process_group()
