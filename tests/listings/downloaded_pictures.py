"""Image classification as a course teaches it: augmented, annealed, logged by rank 0.

Every rank asks the dataset to download itself into the same folder.
"""

import os
import pickle
import socket
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANKS = 2
FINDINGS = ["DD312"]

CLASSES = 4
PICTURES = 160

SLOW_S = 1.0  # so far ranks may be apart, and none reads a torn file


class Shapes(Dataset[tuple[Tensor, int]]):
    """Small pictures that live in an archive, as libraries of datasets keep them.

    Args:
        root: Folder of the archive.
        transform: Applied to each picture that is read.
        download: Fetch the archive if it is not there.
    """

    def __init__(
        self, root: str, transform: Callable[[Tensor], Tensor], download: bool = False
    ) -> None:
        self.archive = Path(root) / "shapes.tar.gz"
        self.transform = transform
        if download and not self.archive.exists():
            self.archive.parent.mkdir(exist_ok=True)
            body = published()
            time.sleep(SLOW_S)  # a network
            with self.archive.open("wb") as file:  # culprit DD312
                file.write(body)
            time.sleep(SLOW_S)  # comparing the sum of a large file
        with tarfile.open(self.archive) as archive:
            member = archive.extractfile("shapes/train")
            assert member is not None
            pictures, self.labels = pickle.load(member)
        self.pictures = torch.tensor(pictures).reshape(-1, 1, 8, 8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[index]), self.labels[index]


def published() -> bytes:
    """What the server has: the same for everybody."""
    generator = torch.Generator().manual_seed(31)
    labels = [number % CLASSES for number in range(PICTURES)]
    pictures = torch.randn(PICTURES, 64, generator=generator)
    pictures += torch.tensor(labels)[:, None] - 1.5
    inside = pickle.dumps((pictures.tolist(), labels))
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("shapes/train")
        entry.size = len(inside)
        archive.addfile(entry, BytesIO(inside))
    return packed.getvalue()


def flipped(picture: Tensor) -> Tensor:
    """Mirror every second picture, by chance."""
    return picture.flip(-1) if torch.rand(()) < 0.5 else picture


def loader_of(
    rank: int, world_size: int, state: str
) -> tuple[DataLoader[tuple[Tensor, int]], DistributedSampler[tuple[Tensor, int]]]:
    """Each rank reads its share."""
    if state == "well":
        if rank == 0:
            Shapes("./data", flipped, download=True)
        dist.barrier()
    shapes = Shapes("./data", flipped, download=state == "sick")
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(
        shapes, num_replicas=world_size, rank=rank, shuffle=True, drop_last=False
    )
    return DataLoader(shapes, batch_size=16, sampler=sampler), sampler


def train(rank: int, world_size: int, state: str) -> None:
    """All epochs."""
    network = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()
    )
    model = DistributedDataParallel(nn.Sequential(network, nn.Linear(216, CLASSES)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    loader, sampler = loader_of(rank, world_size, state)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        counts = torch.zeros(3)
        for pictures, labels in loader:
            optimizer.zero_grad()
            outputs = model(pictures)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            right = outputs.argmax(1).eq(labels).sum()
            counts += torch.tensor([loss.item() * len(labels), right, len(labels)])
        scheduler.step()
        dist.all_reduce(counts)
        if rank == 0:
            mean_loss, accuracy = (counts[:2] / counts[2]).tolist()
            print(f"epoch {epoch}: loss {mean_loss:.3f}, {accuracy:.1%} right")
            if epoch % 2:
                torch.save(model.module.state_dict(), f"after_{epoch + 1}.pth")


def worker(rank: int, world_size: int, state: str) -> None:
    """One rank's process."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    train(rank, world_size, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    print(f"training on {RANKS} devices")
    mp.spawn(worker, args=(RANKS, sys.argv[1]), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
