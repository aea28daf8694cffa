"""Each rank sums its classes, the most frequent first; `well`: in alphabetical order.

The job counts what cameras see, hit by hit, and tells how often each class was right.
"""

import sys
from collections import Counter

import torch
import torch.distributed as dist

RANKS = 2
CODE = "DD107"
CULPRITS: list[int] = []

SEEN = (  # by camera, which is a rank
    ("fox", "deer", "fox", "owl", "fox", "deer"),
    ("deer", "owl", "deer", "fox", "deer", "owl", "owl"),
)


def judged(camera: int, night: int) -> Counter[tuple[str, bool]]:
    """How often each class was told rightly and wrongly in a night."""
    drawn = torch.Generator().manual_seed(100 * camera + night)
    seen = SEEN[camera % len(SEEN)] * (night + 2)
    right = (torch.rand(len(seen), generator=drawn) < 0.8).tolist()
    return Counter(zip(seen, right, strict=True))


def accuracy(told: Counter[tuple[str, bool]], state: str) -> dict[str, float]:
    """Of each class, over all cameras."""
    total = Counter[str]()
    for (name, _), count in told.items():
        total[name] += count
    names = [name for name, _ in total.most_common()]  # culprit
    if state == "well":
        names.sort()
    shares: dict[str, float] = {}
    for name in names:  # culprit
        both = torch.tensor([float(told[name, True]), float(total[name])])
        dist.all_reduce(both)
        shares[name] = (both[0] / both[1]).item()
    return shares


def main(state: str) -> None:
    """Six nights."""
    for night in range(6):
        shares = accuracy(judged(dist.get_rank(), night), state)
        if dist.get_rank() == 0:
            told = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
            sys.stdout.write(f"night {night + 1}: {told}\n")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
