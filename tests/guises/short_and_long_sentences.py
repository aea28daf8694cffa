"""Rank 1 has the long sentences, and a mean of its own; `well` weighs all tokens alike.

The sentences are sorted, and each rank has a half of them.
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset

RANKS = 2
CODE = "DD504"
CULPRITS: list[int] = []

WORDS, IGNORED = 20, -1


class Corpus(Dataset[Tensor]):
    """Sentences of four to about forty words, the shortest first."""

    def __init__(self, count: int = 128) -> None:
        generator = torch.Generator().manual_seed(6)
        self.starts = torch.randint(WORDS, (count,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: int) -> Tensor:
        counted: Tensor = self.starts[at] + 3 * torch.arange(5 + at // 4)
        return counted % WORDS


def collate(sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Words, and those that follow them."""
    padded = pad_sequence(sentences, batch_first=True, padding_value=IGNORED)
    return padded[:, :-1].clamp(min=0), padded[:, 1:]


def loss_of(scores: Tensor, following: Tensor, state: str) -> Tensor:
    """Per word that is no padding."""
    flat, words = scores.flatten(0, 1), following.flatten()
    if state == "sick":
        return cross_entropy(flat, words, ignore_index=IGNORED)  # culprit
    everywhere = (words != IGNORED).sum()
    dist.all_reduce(everywhere)
    total = cross_entropy(flat, words, ignore_index=IGNORED, reduction="sum")
    return total * dist.get_world_size() / everywhere


def train(state: str) -> None:
    """Guess the next word."""
    torch.manual_seed(0)
    rank, sentences = dist.get_rank(), Corpus()
    half = len(sentences) // dist.get_world_size()
    own = Subset(sentences, range(rank * half, (rank + 1) * half))
    order = torch.Generator().manual_seed(rank)
    loader = DataLoader(
        own, batch_size=4, shuffle=True, generator=order, collate_fn=collate
    )
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(WORDS, 12), nn.Linear(12, WORDS))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        for words, following in loader:
            optimizer.zero_grad()
            loss_of(model(words), following, state).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
