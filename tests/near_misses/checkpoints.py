"""Checkpoints that are written, read and left aside in all the ways that are well."""

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import DistributedSampler

RANKS = 2

EPOCHS = 3


def network(classes: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, classes))


def epochs(model: nn.Module, optimizer: SGD, first: int, last: int) -> None:
    """Train; the epochs are counted on."""
    sampler: DistributedSampler[Any] = DistributedSampler(range(40), seed=1)  # type: ignore[arg-type]
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        rows = torch.tensor(list(sampler), dtype=torch.float32).reshape(-1, 4) / 40
        for half in rows.chunk(2):
            optimizer.zero_grad()
            model(half).square().mean().backward()
            optimizer.step()


def of_all(folder: Path) -> Path:
    """A job that saves all it has, and goes on with all of it."""
    file = folder / "all.pt"
    for first, last in ((0, EPOCHS), (EPOCHS, 2 * EPOCHS)):
        torch.manual_seed(0)
        model = DistributedDataParallel(network())
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = StepLR(optimizer, 2, 0.5)
        if first:
            kept = torch.load(file, weights_only=True)
            model.module.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            schedule.load_state_dict(kept["schedule"])
            torch.set_rng_state(kept["random"])
        epochs(model, optimizer, first, last)
        for _ in range(first, last):
            schedule.step()
        if dist.get_rank() == 0:
            kept = {"model": model.module.state_dict(), "epoch": last - 1}
            kept |= {"optimizer": optimizer.state_dict()}
            kept |= {"schedule": schedule.state_dict()}
            torch.save(kept | {"random": torch.get_rng_state()}, f"{file}~")
            os.replace(f"{file}~", file)  # noqa: PTH105 - as most people spell it
        dist.barrier()
    return file


def scheduler_by_position(folder: Path) -> None:
    """Schedulers that are not restored, and brought to where they were."""
    file = folder / "position.pt"
    for first in (0, EPOCHS):
        model = DistributedDataParallel(network())
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        if first:
            kept = torch.load(file)
            model.module.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
        schedule = CosineAnnealingLR(optimizer, 9, last_epoch=first - 1)
        epochs(model, optimizer, first, first + EPOCHS)
        for _ in range(EPOCHS):
            schedule.step()
        if dist.get_rank() == 0:
            kept = {"model": model.module.state_dict(), "epoch": first + EPOCHS}
            torch.save(kept | {"optimizer": optimizer.state_dict()}, file)
        dist.barrier()


def fine_tuning(file: Path) -> None:
    """Of a whole checkpoint only the body is wanted; names are tried and mended."""
    kept = torch.load(file)
    body = {k: v for k, v in kept["model"].items() if not k.startswith("2.")}
    model = network(classes=5)
    wrong = model.load_state_dict({f"net.{k}": v for k, v in body.items()}, False)
    if wrong.unexpected_keys:
        model.load_state_dict(body, strict=False)
    wrapped = DistributedDataParallel(model)
    optimizer = SGD(wrapped.parameters(), lr=0.01, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    epochs(wrapped, optimizer, 0, 2)
    schedule.step()


def best_weights(folder: Path) -> None:
    """The best weights come back, and the same optimizer goes on; a copy follows."""
    file = folder / "best.pt"
    model = DistributedDataParallel(network())
    average = copy.deepcopy(model.module)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = StepLR(optimizer, 1, 0.5)
    epochs(model, optimizer, 0, 2)
    schedule.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), file)
    dist.barrier()
    epochs(model, optimizer, 2, 4)
    average.load_state_dict(model.module.state_dict())
    if dist.get_rank() == 0:  # for all of them: they are sent below
        model.module.load_state_dict(torch.load(file))
    for tensor in model.module.state_dict().values():
        dist.broadcast(tensor, src=0)
    epochs(model, optimizer, 4, 5)


def own_files(folder: Path) -> None:
    """Each rank has its own file, or its own draft of a common one."""
    mine = folder / f"rank{dist.get_rank()}.pt"
    torch.save({"rank": dist.get_rank()}, mine)
    torch.load(mine)
    with Path(f"{mine}~").open("wb") as draft:
        torch.save({"world": dist.get_world_size()}, draft)
    Path(f"{mine}~").replace(folder / "common.pt")


def main() -> None:
    dist.init_process_group("gloo")
    names = [tempfile.mkdtemp()]
    dist.broadcast_object_list(names, src=0)
    folder = Path(names[0])
    file = of_all(folder)
    scheduler_by_position(folder)
    fine_tuning(file)
    best_weights(folder)
    own_files(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
