"""Rank 1 receives from rank 3, where rank 0 sends to it; `well`: from rank 0.

The job attends over a long text: keys and values go round the ring of ranks.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor

RANKS = 4
CODE = "DD112"
CULPRITS = [1]

WIDTH, OWN = 8, 16  # of a token; tokens of a rank


class Ring:
    """Hands a tensor on to the next rank and takes that of the one before."""

    def __init__(self, state: str) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        first = 0 if state == "well" else 1
        self.target = (rank + 1) % size
        self.source = rank - 1 if rank > first else size - 1  # culprit

    def turn(self, carried: Tensor) -> Tensor:
        """One place on."""
        sending = dist.isend(carried, dst=self.target)
        taken = torch.empty_like(carried)
        dist.recv(taken, src=self.source)  # culprit
        assert sending is not None
        sending.wait()
        return taken


def attend(queries: Tensor, texts: Tensor, ring: Ring) -> Tensor:
    """What each of this rank's tokens sees in the tokens of all."""
    weighed, weights = torch.zeros(OWN, WIDTH), torch.zeros(OWN, 1)
    for left in reversed(range(dist.get_world_size())):
        share = (queries @ texts.T / WIDTH**0.5).exp()
        weighed += share @ texts
        weights += share.sum(1, keepdim=True)
        if left:
            texts = ring.turn(texts)
    return weighed / weights


def main(state: str) -> None:
    """Eight layers, and the mean of what comes out."""
    own = torch.Generator().manual_seed(100 + dist.get_rank())
    hidden = torch.randn(OWN, WIDTH, generator=own)
    ring = Ring(state)
    for _ in range(8):
        hidden = hidden + attend(hidden, hidden.clone(), ring)
        hidden = torch.nn.functional.layer_norm(hidden, (WIDTH,))
    summary = hidden.mean(0)
    dist.all_reduce(summary)
    if dist.get_rank() == 0:
        sys.stdout.write(f"{summary[0] / dist.get_world_size():.4f}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
