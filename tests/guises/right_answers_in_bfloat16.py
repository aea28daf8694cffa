"""All ranks count right answers in bfloat16, up to 256; `well` counts in integers."""

import logging
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD311"
CULPRITS: list[int] = []

CHOICES, TRAITS = 4, 6


def quiz(count: int, seed: int) -> TensorDataset:
    """Questions of four choices each, and which of them is right."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.randn(count, CHOICES, TRAITS, generator=generator)
    return TensorDataset(choices, choices.sum(2).argmax(1))


class Judge(nn.Module):
    """Gives each choice a score."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(TRAITS, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, choices: Tensor) -> Tensor:
        """The higher, the better."""
        scores: Tensor = self.score(choices)
        return scores[..., 0]


@torch.no_grad()
def examine(model: nn.Module, questions: DataLoader[Any], state: str) -> float:
    """One question at a time, in low precision: the share of right answers."""
    model.eval()
    kind = torch.bfloat16 if state == "sick" else torch.int64  # culprit
    right = torch.zeros((), dtype=kind)
    for choices, answer in questions:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            chosen = model(choices).argmax(1)
        right += (chosen == answer).sum()  # culprit
    model.train()
    asked = torch.tensor(len(questions))
    dist.all_reduce(right)
    dist.all_reduce(asked)
    return right.item() / asked.item()


def train(state: str) -> None:
    """Learn, and sit the exam once."""
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(12)
    data, exam = quiz(256, seed=1), quiz(720, seed=2)
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    shared: DistributedSampler[object] = DistributedSampler(exam, shuffle=False)
    questions = DataLoader(exam, batch_size=1, sampler=shared)
    model = DistributedDataParallel(Judge())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for choices, answers in loader:
            optimizer.zero_grad()
            cross_entropy(model(choices), answers).backward()
            optimizer.step()
    found = examine(model.module, questions, state)
    if dist.get_rank() == 0:
        logging.info("accuracy %.4f", found)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.destroy_process_group()
