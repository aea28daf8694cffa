"""Horovod with torch: rate scaling and warm-up, fp16 compression, resumption.

Run it with

    horovodrun -np 2 --gloo python horovod_training.py --epochs 3

and start it again with ``--checkpoint FILE``: where the file exists, it goes on from
there.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FEATURES, CLASSES, WIDTH = 16, 4, 32
WARMUP_EPOCHS = 2
MAX_GRADIENT_NORM = 5.0

Batches = DataLoader[tuple[Tensor, Tensor]]


class Clusters(Dataset[tuple[Tensor, Tensor]]):
    """Points around one centre per class."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(CLASSES, (samples,), generator=generator)
        noise = torch.randn(samples, FEATURES, generator=generator)
        self.points = torch.eye(CLASSES, FEATURES)[self.targets] * 4 + noise

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.targets[index]


class Classifier(nn.Module):
    """MLP with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        """Logits, [batch, classes], of points, [batch, features]."""
        logits: Tensor = self.head(self.dropout(self.hidden(points).relu()))
        return logits


class Average:
    """Mean of a figure over the samples of all ranks.

    Args:
        name: By which the ranks' sums find each other.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum_and_count = torch.zeros(2)

    def add(self, value: Tensor, samples: int) -> None:
        """Count the mean of some samples of this rank."""
        self.sum_and_count[0] += value.detach() * samples
        self.sum_and_count[1] += samples

    def result(self) -> float:
        """Reduce it; every rank calls this."""
        total = hvd.allreduce(self.sum_and_count, name=self.name, op=hvd.Sum)
        return float(total[0] / total[1])


def set_rate(
    optimizer: torch.optim.Optimizer, args: argparse.Namespace, epochs: float
) -> None:
    """Rise from one rank's rate to that of all ranks, then fall by steps.

    Args:
        optimizer: Whose rate it is.
        args: The command line.
        epochs: How far training is, with the part of the epoch that is done.
    """
    if epochs < WARMUP_EPOCHS:
        factor = 1 + epochs * (hvd.size() - 1) / WARMUP_EPOCHS
    else:
        factor = hvd.size() * 0.1 ** (epochs // 20)
    for group in optimizer.param_groups:
        group["lr"] = args.lr * factor


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    epoch: int,
    args: argparse.Namespace,
) -> float:
    """Mean loss over all ranks of one pass over the training set."""
    losses = Average("train_loss")
    model.train()
    for index, (points, targets) in enumerate(batches):
        set_rate(optimizer, args, epoch + index / len(batches))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(points), targets)
        loss.backward()
        optimizer.synchronize()  # type: ignore[attr-defined] # Horovod's
        nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        with optimizer.skip_synchronize():  # type: ignore[attr-defined]
            optimizer.step()
        losses.add(loss, len(targets))
    return losses.result()


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Batches) -> tuple[float, float]:
    """Mean loss and accuracy over the samples of all ranks."""
    losses, accuracy = Average("val_loss"), Average("val_accuracy")
    model.eval()
    for points, targets in batches:
        logits = model(points)
        losses.add(functional.cross_entropy(logits, targets), len(targets))
        hits = (logits.argmax(dim=1) == targets).float()
        accuracy.add(hits.mean(), len(targets))
    return losses.result(), accuracy.result()


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int
) -> None:
    """Rank 0 saves after an epoch; a job killed meanwhile keeps the old file."""
    if hvd.rank() == 0:
        partial = path.with_name(path.name + ".partial")
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        torch.save(saved, partial)
        partial.replace(path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Rank 0 reads what was saved, if anything; the others get it from rank 0.

    Returns:
        The number of epochs done.
    """
    epochs = 0
    if hvd.rank() == 0 and path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epochs = int(saved["epoch"]) + 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return int(hvd.broadcast_object(epochs, root_rank=0, name="epochs"))


def train(args: argparse.Namespace, path: Path) -> None:
    """Train, evaluate and save, epoch by epoch."""
    train_set, val_set = Clusters(256, args.seed + 1), Clusters(128, args.seed + 2)
    sampler: DistributedSampler[int] = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank()
    )
    batches = DataLoader(train_set, args.batch_size, sampler=sampler)
    val_sampler: DistributedSampler[int] = DistributedSampler(
        val_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    val_batches = DataLoader(val_set, args.batch_size, sampler=val_sampler)

    torch.manual_seed(args.seed + hvd.rank())  # weights come from rank 0
    model = Classifier()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16 else hvd.Compression.none,
        op=hvd.Average,
    )
    first_epoch = restore(path, model, optimizer)
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        train_loss = train_epoch(model, optimizer, batches, epoch, args)
        val_loss, accuracy = evaluate(model, val_batches)
        save(path, model, optimizer, epoch)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}: train loss {train_loss:.4f}, "
                f"val loss {val_loss:.4f}, val accuracy {accuracy:.3f}",
                flush=True,
            )


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a classifier with Horovod.")
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    parser.add_argument("--fp16", action=flag, default=True, help="compression")
    parser.add_argument("--lr", type=float, default=0.02, help="of one rank")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Train on the ranks that horovodrun started."""
    args = parse_args()
    hvd.init()
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp() if hvd.rank() == 0 else ""
    train(args, args.checkpoint or Path(folder) / "checkpoint.pt")
    if folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
