"""A language model on padded sentences, whose every token weighs the same.

Sentences differ in length, so batches differ in tokens. A mean of the batches' means
would give the tokens of a short batch more weight: losses are sums here, divided by the
tokens of the whole window on all ranks. Run it with

    torchrun --standalone --nproc-per-node 2 token_accumulation.py
"""

import argparse
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LinearLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PADDING = 0
WORDS, WIDTH = 24, 32
LONGEST = 14
MAX_GRADIENT_NORM = 1.0

Batch = tuple[Tensor, Tensor]
"""Words and the words that follow them, [batch, length] int64 each, padded."""


class Sentences(Dataset[Tensor]):
    """Each word is mostly its forerunner's double; lengths differ."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.sentences = []
        for _ in range(count):
            length = int(torch.randint(3, LONGEST, (), generator=generator))
            words = torch.randint(1, WORDS, (length,), generator=generator)
            is_copied = torch.rand(length, generator=generator) < 0.8
            for at in range(1, length):
                if is_copied[at]:
                    words[at] = 1 + 2 * words[at - 1] % (WORDS - 1)
            self.sentences.append(words)

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Tensor:
        return self.sentences[index]


class LanguageModel(nn.Module):
    """Guesses each next word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=PADDING)
        self.recurrence = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Logits, [batch, length, words], of words, [batch, length] int64."""
        hidden, _ = self.recurrence(self.embedding(words))
        logits: Tensor = self.head(hidden)
        return logits


def collate(sentences: Sequence[Tensor]) -> Batch:
    """Sentences of many lengths as one batch; what follows the end is padding."""
    words = pad_sequence(list(sentences), batch_first=True, padding_value=PADDING)
    return words[:, :-1], words[:, 1:]


def windows(batches: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Batches by windows of a size; the last window holds what is left."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def tokens_of(window: Sequence[Batch], device: torch.device) -> Tensor:
    """Words to guess in the windows of all ranks, [] int64."""
    count = sum(int((following != PADDING).sum()) for _, following in window)
    tokens = torch.tensor(count, device=device)
    dist.all_reduce(tokens)
    return tokens


def step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    window: Sequence[Batch],
    device: torch.device,
) -> Tensor:
    """Make a step with a window of batches; the loss per token of all ranks, []."""
    tokens = tokens_of(window, device)
    total = torch.zeros((), device=device)
    optimizer.zero_grad()
    for number, (words, following) in enumerate(window, start=1):
        targets = following.to(device).flatten()
        is_last = number == len(window)
        with contextlib.nullcontext() if is_last else model.no_sync():
            logits = model(words.to(device)).flatten(0, 1)
            loss = functional.cross_entropy(
                logits,
                targets,
                ignore_index=PADDING,
                reduction="sum",
            )
            # DDP divides by the number of ranks, and the tokens of all are counted.
            share = loss * dist.get_world_size() / tokens
            share.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    scheduler.step()
    dist.all_reduce(total)
    return total / tokens


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train for some epochs."""
    torch.manual_seed(args.seed)
    known = Sentences(220, seed=args.seed + 1)
    sampler: DistributedSampler[Tensor] = DistributedSampler(known, seed=args.seed)
    batches: DataLoader[Tensor] = DataLoader(
        known, batch_size=args.batch_size, sampler=sampler, collate_fn=collate
    )
    model = DistributedDataParallel(
        LanguageModel().to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = LinearLR(optimizer, start_factor=0.2, total_iters=6)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = torch.zeros(())
        for window in windows(batches, args.accumulate):
            loss = step(model, optimizer, scheduler, window, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a small language model.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--accumulate", type=int, default=4, help="batches per step")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Each rank has its own GPU, or all are on the CPU.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    # train() has dropped its model: a DDP reducer freed after the process group
    # is destroyed can hang at exit (torch 2.13).
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
