"""nn.DataParallel: one process that divides each batch among its GPUs.

Run it with

    python data_parallel.py

Without GPUs the model runs as it is. Batches are cut into parts where they are too
large for the first GPU, on which all outputs are gathered.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 8, 4


def make_model() -> nn.Sequential:
    """A small convolutional network for pictures of one channel."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def make_pictures(count: int, seed: int) -> TensorDataset:
    """Noise with a bright spot, labelled by the quarter in which that is."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    rows, columns = torch.randint(SIZE, (2, count), generator=generator)
    pictures[torch.arange(count), 0, rows, columns] += 6
    half = SIZE // 2
    return TensorDataset(pictures, 2 * (rows >= half) + (columns >= half).long())


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """Share of pictures whose quarter is found."""
    model.eval()
    device = next(model.parameters()).device
    right = count = 0
    for pictures, quarters in batches:
        found = model(pictures.to(device)).argmax(dim=1)
        right += int((found == quarters.to(device)).sum())
        count += len(quarters)
    return right / count


def train(args: argparse.Namespace, device: torch.device, checkpoint: Path) -> None:
    """Train, keep the best weights, and evaluate what was kept."""
    torch.manual_seed(args.seed)
    model = nn.DataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    shuffled = torch.Generator().manual_seed(args.seed)
    batches = DataLoader(
        make_pictures(1024, args.seed),
        batch_size=args.batch_size,
        shuffle=True,
        generator=shuffled,
    )
    val_batches = DataLoader(make_pictures(256, args.seed + 1), batch_size=128)
    best = -1.0
    for epoch in range(args.epochs):
        model.train()
        for pictures, quarters in batches:
            optimizer.zero_grad()
            for part, labels in zip(
                pictures.chunk(args.parts), quarters.chunk(args.parts), strict=True
            ):
                logits = model(part.to(device))
                loss = nn.functional.cross_entropy(logits, labels.to(device))
                (loss / args.parts).backward()
            optimizer.step()
        reached = accuracy(model, val_batches)
        print(f"epoch {epoch + 1}: accuracy {reached:.3f}", flush=True)
        if reached > best:
            best = reached
            # Without the wrapper, whose names begin with "module.".
            torch.save(model.module.state_dict(), checkpoint)
    kept = make_model().to(device)
    kept.load_state_dict(torch.load(checkpoint, map_location=device))
    print(f"kept: accuracy {accuracy(kept, val_batches):.3f}", flush=True)


def main() -> None:
    """Train on all GPUs of the machine, or on the CPU."""
    parser = argparse.ArgumentParser(description="Train with nn.DataParallel.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="over all GPUs")
    parser.add_argument("--parts", type=int, default=2, help="of a batch")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        train(args, device, Path(folder, "best.pt"))


if __name__ == "__main__":
    main()
