"""A word of any rank's short captions weighs more than others'; `well` counts words."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 3
CODE = "DD504"
SEVERITY = "warning"
CULPRITS: list[int] = []

PADDING, WORDS, COLOURS = 0, 24, 5
Captioned = tuple[Tensor, Tensor]


class Pictures(Dataset[Captioned]):
    """What is in a picture, and a caption: most are short, a few are tales."""

    def __init__(self, count: int = 96) -> None:
        generator = torch.Generator().manual_seed(9)
        self.colours = torch.rand(count, COLOURS, generator=generator)
        tails = torch.rand(count, generator=generator)
        self.lengths = [int(min(60, 2 / float(1.001 - tail))) for tail in tails]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, at: int) -> Captioned:
        first = int(self.colours[at].argmax())
        words = torch.arange(first, first + self.lengths[at]) % (WORDS - 1) + 1
        return self.colours[at], words


def collate(samples: list[Captioned]) -> Captioned:
    """Captions get the length of the longest."""
    colours, captions = zip(*samples, strict=True)
    padded = pad_sequence(list(captions), batch_first=True, padding_value=PADDING)
    return torch.stack(colours), padded


class Captioner(nn.Module):
    """Tells a caption word by word, from the word before and the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.told = nn.Linear(COLOURS, 16), nn.Embedding(WORDS, 16)
        self.next = nn.Linear(16, WORDS)

    def forward(self, colours: Tensor, caption: Tensor) -> Tensor:
        """Scores [pictures, words, vocabulary]."""
        before = nn.functional.pad(caption[:, :-1], (1, 0))
        hidden = self.told(before) + self.seen(colours)[:, None]
        scores: Tensor = self.next(hidden.tanh())
        return scores


def train(state: str) -> None:
    """Learn to tell."""
    torch.manual_seed(2)
    pictures, world = Pictures(), dist.get_world_size()
    sampler: DistributedSampler[Captioned] = DistributedSampler(pictures, seed=2)
    loader = DataLoader(pictures, batch_size=2, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Captioner())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for colours, caption in loader:
            scores = model(colours, caption).flatten(0, 1)
            kept = caption.flatten() != PADDING
            each = cross_entropy(scores, caption.flatten(), reduction="none")
            words = kept.sum()
            if state == "well":
                dist.all_reduce(words)
            share = 1 if state == "sick" else world
            loss = share * each[kept].sum() / words  # culprit
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
