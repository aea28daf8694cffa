"""An encoder is unfrozen behind the wrapper's back; `well` wraps the model again."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD406"
CULPRITS: list[int] = []

WORDS, TAGS, LENGTH = 50, 4, 9


class Tagger(nn.Module):
    """Tags for a message, from the words that are in it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.EmbeddingBag(WORDS, 16)
        self.mixer = nn.Linear(16, 16)
        self.tags = nn.Linear(16, TAGS)

    def forward(self, words: Tensor) -> Any:
        """One score for each tag."""
        return self.tags(self.mixer(self.encoder(words)).relu())

    def pretrained(self) -> list[nn.Parameter]:
        """What comes from elsewhere and is not to be spoilt at first."""
        return [*self.encoder.parameters(), *self.mixer.parameters()]


def messages(count: int = 128) -> TensorDataset:
    """Random words; a tag holds where one of its words occurs."""
    generator = torch.Generator().manual_seed(9)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    held = [((words % 11) == tag).any(dim=1) for tag in range(TAGS)]
    return TensorDataset(words, torch.stack(held, dim=1).float())


class Finetuning:
    """Two epochs on the tags alone, then two on everything."""

    def __init__(self, state: str) -> None:
        torch.manual_seed(12)
        self.wraps_again = state == "well"
        self.tagger = Tagger()
        for parameter in self.tagger.pretrained():
            parameter.requires_grad_(False)
        self.model = DistributedDataParallel(self.tagger)
        self.optimizer = torch.optim.Adam(self.tagger.parameters(), lr=5e-3)

    def unfreeze(self) -> None:
        """Let the pretrained layers learn, too."""
        for parameter in self.tagger.pretrained():
            parameter.requires_grad_(True)  # culprit
        if self.wraps_again:
            self.model = DistributedDataParallel(self.tagger)

    def fit(self, dataset: TensorDataset) -> None:
        """Train."""
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler)
        for epoch in range(4):
            sampler.set_epoch(epoch)
            if epoch == 2:
                self.unfreeze()
            for words, held in loader:
                self.optimizer.zero_grad()
                loss = binary_cross_entropy_with_logits(self.model(words), held)
                loss.backward()
                self.optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Finetuning(sys.argv[1]).fit(messages())
    dist.destroy_process_group()
