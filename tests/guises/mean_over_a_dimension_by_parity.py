"""Ranks 1 and 3 average over tp, where dp is meant; `well`: all average over dp.

The job evaluates how well held-out clicks are foretold, on a mesh of two by two.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

RANKS = 4
CODE = "DD117"
CULPRITS = [1, 3]


def clicks(part: int, count: int = 64) -> tuple[Tensor, Tensor]:
    """What is known of visitors, and whether they clicked."""
    drawn = torch.Generator().manual_seed(part)
    known = torch.randn(count, 5, generator=drawn)
    return known, (known.sum(1) > 0).float()


def mean_of_parts(values: Tensor, mesh: DeviceMesh, state: str) -> Tensor:
    """Average over the parts of the data, of which each column of the mesh has all."""
    even = dist.get_rank() % 2 == 0
    dimension = mesh["dp"] if even or state == "well" else mesh["tp"]  # culprit
    dist.all_reduce(values, group=dimension.get_group())
    return values / dimension.size()


def main(state: str) -> None:
    """Tell losses at several sharpnesses."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    known, clicked = clicks(mesh["dp"].get_local_rank())
    weights = torch.full((5,), 0.5)
    for sharpness in (0.5, 1.0, 2.0, 4.0):
        chance = (sharpness * known @ weights).sigmoid()
        loss = torch.nn.functional.binary_cross_entropy(chance, clicked)
        means = mean_of_parts(torch.stack([loss, chance.mean()]), mesh, state)
        dist.barrier()
        if dist.get_rank() == 0:
            sys.stdout.write(f"{sharpness}: {means[0]:.4f} {means[1]:.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
