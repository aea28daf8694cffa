"""A script of the days before torchrun: told its local rank by an option.

Run it with one of

    python -m torch.distributed.launch --nproc-per-node 2 launched_images.py
    python -m torch.distributed.launch --nproc-per-node 2 --use-env launched_images.py
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

SIDE, CLASSES = 8, 3

Images = DataLoader[tuple[Tensor, ...]]


class AverageMeter:
    """Keeps the sum and the number of what it is shown, of all ranks in the end."""

    def __init__(self, device: torch.device) -> None:
        self.sum_and_count = torch.zeros(2, device=device)

    def update(self, value: Tensor, count: int) -> None:
        """Take in a mean over some samples."""
        self.sum_and_count[0] += value.detach() * count
        self.sum_and_count[1] += count

    def average(self) -> float:
        """The mean over the samples of all ranks, which all must ask for."""
        dist.all_reduce(self.sum_and_count)
        return float(self.sum_and_count[0] / self.sum_and_count[1])


def make_images(samples: int, seed: int) -> TensorDataset:
    """Noise with a bright row, column or diagonal, which is the class."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 * torch.randn(samples, 1, SIDE, SIDE, generator=generator)
    kinds = torch.randint(CLASSES, (samples,), generator=generator)
    places = torch.randint(SIDE, (samples,), generator=generator)
    for image, kind, place in zip(images, kinds.tolist(), places.tolist(), strict=True):
        line = (image[0, place], image[0, :, place], image[0].diagonal())[kind]
        line += 2
    return TensorDataset(images, kinds)


def make_model() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 2) ** 2, CLASSES),
    )


def train_epoch(
    model: nn.Module,
    images: Images,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    """Mean loss over all ranks of one pass over the training set."""
    losses = AverageMeter(device)
    model.train()
    for points, kinds in images:
        points, kinds = points.to(device), kinds.to(device)
        loss = nn.functional.cross_entropy(model(points), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss, len(kinds))
    return losses.average()


@torch.no_grad()
def validate(model: nn.Module, images: Images, device: torch.device) -> float:
    """Accuracy over the samples of all ranks."""
    hits = AverageMeter(device)
    model.eval()
    for points, kinds in images:
        points, kinds = points.to(device), kinds.to(device)
        right = (model(points).argmax(dim=1) == kinds).float()
        hits.update(right.mean(), len(kinds))
    return hits.average()


def train(args: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Train, and keep the best model on disk."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * world_size, momentum=0.9, weight_decay=1e-4
    )
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    train_set = make_images(256, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_set)
    train_images = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_set = make_images(99, seed=2)
    val_part = Subset(val_set, range(rank, len(val_set), world_size))
    val_images = DataLoader(val_part, batch_size=args.batch_size)
    best = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, train_images, optimizer, device)
        accuracy = validate(model.module, val_images, device)
        scheduler.step()
        # All local ranks 0 would write, one on each machine.
        if rank == 0 and accuracy > best:
            torch.save(model.module.state_dict(), folder / "best.pt")
        best = max(best, accuracy)
        if args.local_rank == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.3f}")


def main() -> None:
    """Train on the ranks that the launcher started."""
    parser = argparse.ArgumentParser(description="Train a small image classifier.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    # With a dash since torch 2.0, and by a variable where --use-env is given.
    parser.add_argument(
        *("--local-rank", "--local_rank"),
        type=int,
        default=int(os.environ.get("LOCAL_RANK", "0")),
    )
    args = parser.parse_args()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", args.local_rank), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method="env://")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    train(args, device, Path(folder[0]))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
