"""Seven recordings, dealt out in turn to two ranks; each file is summed over ranks."""

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
CODE = "DD208"
CULPRITS = [1]


def recordings() -> list[int]:
    """The lengths of all recordings."""
    return [5, 9, 4, 7, 6, 8, 5]


def of_this_rank(lengths: list[int]) -> list[int]:
    """Those that this rank reads."""
    return lengths[dist.get_rank() :: dist.get_world_size()]  # culprit


class Statistics:
    """Means of features over the recordings of all ranks."""

    def __init__(self) -> None:
        self.encoder = nn.Conv1d(1, 4, 3, padding=1)
        self.total = torch.zeros(4)
        self.frames = torch.zeros(1)

    @torch.no_grad()
    def add(self, length: int) -> None:
        """Count one recording of each rank."""
        features = self.encoder(torch.randn(1, 1, length))
        total = features.sum(dim=(0, 2))
        dist.all_reduce(total)
        frames = torch.tensor([float(length)])
        dist.all_reduce(frames)
        self.total += total
        self.frames += frames


def main() -> None:
    """Go through all recordings."""
    torch.manual_seed(0)
    statistics = Statistics()
    for length in of_this_rank(recordings()):
        statistics.add(length)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
