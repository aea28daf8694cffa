"""Ranks read the old vocabulary while rank 0 counts the new; `well`: they wait for it.

The job sorts messages by topic, and takes new words into its vocabulary each week.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2
CODE = "DD312"
CULPRITS: list[int] = []

KNOWN = 40  # words


def words_of(week: int, count: int) -> list[list[str]]:
    """Messages of ten words; other words are in fashion each week."""
    drawn = random.Random(week)
    return [
        [f"w{min(99, int(drawn.expovariate(0.05))) + 3 * week}" for _ in range(10)]
        for _ in range(count)
    ]


def count_words(week: int, file: Path) -> None:
    """Number the most frequent words of a week."""
    counted = Counter(word for text in words_of(week, 20_000) for word in text)
    numbers = {word: n for n, (word, _) in enumerate(counted.most_common(KNOWN), 1)}
    with file.open("w") as out:  # culprit
        json.dump(numbers, out)


def messages(week: int, file: Path, state: str) -> TensorDataset:
    """The week's messages, as numbers, and their topics."""
    if dist.get_rank() == 0:
        count_words(week, file)
    if week == 0 or state == "well":
        dist.barrier()
    with file.open() as given:  # culprit
        numbers = json.load(given)
    texts = words_of(week + 1, 96)
    known = torch.tensor([[numbers.get(word, 0) for word in text] for text in texts])
    topics = [sum(word.endswith("1") for word in text) % 2 for text in texts]
    return TensorDataset(known, torch.tensor(topics))


def main(state: str, file: Path) -> None:
    """Train for two weeks."""
    torch.manual_seed(31)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(KNOWN + 1, 4), nn.Flatten(), nn.Linear(40, 2))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for week in range(2):
        data = messages(week, file, state)
        sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
        for epoch in range(2):
            sampler.set_epoch(2 * week + epoch)
            for known, topics in DataLoader(data, batch_size=8, sampler=sampler):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(known), topics).backward()
                optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    shared = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(shared, src=0)
    main(sys.argv[1], Path(shared[0], "words.json"))
    dist.barrier()
    dist.destroy_process_group()
