"""A loader's worker asks all ranks for the longest text; `well`: the ranks do, later.

The job tells reviews apart; texts are padded to one length on all ranks.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 2
CODE = "DD210"
CULPRITS: list[int] = [0, 1]
OPTIONS = ["--budget", "40"]

WORDS = 50


class Reviews(Dataset[tuple[Tensor, int]]):
    """Texts of different lengths, and whether they praise."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(23)
        lengths = torch.randint(3, 16, (96,), generator=drawn).tolist()
        self.texts = [torch.randint(1, WORDS, (n,), generator=drawn) for n in lengths]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        text = self.texts[index]
        return text, int((text > WORDS // 2).sum() > len(text) // 2)


def as_long_as_the_longest(texts: Tensor) -> Tensor:
    """Pad to what the longest text of all ranks needs."""
    longest = torch.tensor(texts.shape[1])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)  # culprit
    return nn.functional.pad(texts, (0, int(longest) - texts.shape[1]))


def together(some: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch, as long as its own longest text."""
    texts, praise = zip(*some, strict=True)
    return nn.utils.rnn.pad_sequence(list(texts), True), torch.tensor(praise)


def together_on_all_ranks(some: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch, as long as those of the other ranks."""
    texts, praise = together(some)
    return as_long_as_the_longest(texts), praise


def main(state: str) -> None:
    """Train for two epochs."""
    torch.manual_seed(3)
    collate = together if state == "well" else together_on_all_ranks
    reviews = Reviews()
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(reviews)
    loader = DataLoader(reviews, 8, sampler=sampler, num_workers=1, collate_fn=collate)
    model = DistributedDataParallel(nn.EmbeddingBag(WORDS, 2, padding_idx=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for texts, praise in loader:
            if state == "well":
                texts = as_long_as_the_longest(texts)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(texts), praise).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
