"""Hugging Face's Accelerate: accumulation, clipping, evaluation and checkpoints.

Run it with

    accelerate launch --multi_gpu --num_processes 2 accelerate_training.py
With ``--cpu`` it starts one process, unless it is given a hostfile of MPI.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH, CLASSES = 40, 32, 12, 4
MAX_GRADIENT_NORM = 1.0


class Classifier(nn.Module):
    """Tells the topic of a short text from the mean of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, texts: Tensor) -> Tensor:
        """Logits, [batch, classes], of [batch, length]."""
        logits: Tensor = self.layers(self.words(texts).mean(dim=1))
        return logits


def make_texts(count: int, seed: int) -> TensorDataset:
    """Texts whose words are mostly of one topic, a quarter of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    topics = torch.randint(CLASSES, (count,), generator=generator)
    size = VOCABULARY // CLASSES
    own = torch.randint(size, (count, LENGTH), generator=generator)
    own += size * topics.unsqueeze(1)
    other = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
    keep = torch.rand(count, LENGTH, generator=generator) < 0.4
    return TensorDataset(torch.where(keep, own, other), topics)


@torch.no_grad()
def evaluate(
    accelerator: Accelerator, model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]
) -> float:
    """Accuracy over the whole set; `gather_for_metrics` drops what was padded."""
    model.eval()
    hits = total = 0
    for texts, topics in batches:
        guesses = model(texts).argmax(dim=1)
        guesses, truths = accelerator.gather_for_metrics((guesses, topics))
        hits += int((guesses == truths).sum())
        total += len(truths)
    return hits / total


def train(accelerator: Accelerator, args: argparse.Namespace, folder: Path) -> None:
    """Train, evaluate and save, epoch by epoch; and load what was saved."""
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_batches = DataLoader(
        make_texts(320, seed=1), batch_size=args.batch_size, shuffle=True
    )
    val_batches = DataLoader(make_texts(75, seed=2), batch_size=args.batch_size)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + 0.02 * step))
    model, optimizer, train_batches, val_batches, scheduler = accelerator.prepare(
        model, optimizer, train_batches, val_batches, scheduler
    )
    for epoch in range(args.epochs):
        model.train()
        for texts, topics in train_batches:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(texts), topics)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accuracy = evaluate(accelerator, model, val_batches)
        accelerator.print(f"epoch {epoch + 1}: accuracy {accuracy:.3f}", flush=True)
        accelerator.save_state(str(folder / "state"))
    accelerator.wait_for_everyone()  # `save_state` does not
    accelerator.load_state(str(folder / "state"))
    again = evaluate(accelerator, model, val_batches)
    accelerator.print(f"restored: accuracy {again:.3f}", flush=True)


def main() -> None:
    """Train on the processes that `accelerate launch` started."""
    parser = argparse.ArgumentParser(description="Train a small model by Accelerate.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per process")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=args.accumulate,
    )
    set_seed(args.seed, device_specific=True)  # DDP hands out the weights of rank 0
    folder = [tempfile.mkdtemp() if accelerator.is_main_process else ""]
    broadcast_object_list(folder)
    train(accelerator, args, Path(folder[0]))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder[0])
    accelerator.end_training()


if __name__ == "__main__":
    main()
