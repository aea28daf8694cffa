"""Ranks 1 and 3 average gradients over tp; `well`: over dp, as ranks 0 and 2 do.

The job rates loans; tp cuts the columns of the table in two, dp its rows.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 4
CODE = "DD117"
CULPRITS = [1, 3]

COLUMNS = 12


def loans(count: int = 128) -> TensorDataset:
    """Columns of figures, and how much was paid back."""
    drawn = torch.Generator().manual_seed(77)
    table = torch.randn(count, COLUMNS, generator=drawn)
    return TensorDataset(table, table @ torch.linspace(-1, 1, COLUMNS)[:, None])


class Rating:
    """A layer of which each rank of tp has the weights of half of the columns."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, half = mesh, COLUMNS // 2
        begin = mesh["tp"].get_local_rank() * half
        self.mine = slice(begin, begin + half)
        whole = nn.Linear(COLUMNS, 1, bias=False)
        self.weight = nn.Parameter(whole.weight.detach()[:, self.mine].clone())

    def backward(self, table: Tensor, paid: Tensor) -> None:
        """Gradients of this rank's weights, by its share of the rows."""
        partial = table[:, self.mine] @ self.weight.T
        rating = partial.detach().clone()
        dist.all_reduce(rating, group=self.mesh.get_group("tp"))
        rating.requires_grad_()
        nn.functional.mse_loss(rating, paid).backward()
        partial.backward(rating.grad)

    def average(self, state: str) -> None:
        """Let the weights that two ranks have alike stay alike."""
        even = dist.get_rank() % 2 == 0
        name = "dp" if even or state == "well" else "tp"  # culprit
        line = self.mesh[name]
        assert self.weight.grad is not None
        dist.all_reduce(self.weight.grad, group=line.get_group())
        self.weight.grad /= line.size()


def main(state: str) -> None:
    """Train for three epochs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(5)
    rating = Rating(mesh)
    optimizer = torch.optim.SGD([rating.weight], lr=0.05)
    data = loans()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        data, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()
    )
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for table, paid in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            rating.backward(table, paid)
            rating.average(state)
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
