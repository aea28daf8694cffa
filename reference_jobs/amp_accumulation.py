"""Mixed precision with accumulated gradients under DDP, clipped and scheduled.

A step is made with a window of batches. Losses are scaled for float16, and gradients
are unscaled before they are clipped; what is left of an epoch makes a shorter window.
Run it with

    torchrun --standalone --nproc-per-node 2 amp_accumulation.py --epochs 3

and go on from where it stopped by giving the same ``--checkpoint FILE`` again.
"""

import argparse
import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES, WIDTH = 12, 4, 32
MAX_GRADIENT_NORM = 1.0
WARM_UP_STEPS = 4

PRECISIONS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}

Batch = Sequence[Tensor]
"""Points, [batch, features], and their classes, [batch] int64."""


@dataclass
class Training:
    """All that changes while training, and how it is done."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    scaler: GradScaler
    precision: torch.dtype
    device: torch.device


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


def step(training: Training, window: Sequence[Batch]) -> Tensor:
    """Make a step with a window of batches of one size; their mean loss, []."""
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    device = training.device
    mixed = training.precision is not torch.float32
    mean_loss = torch.zeros((), device=device)
    for number, (points, classes) in enumerate(window, start=1):
        is_last = number == len(window)
        with contextlib.nullcontext() if is_last else model.no_sync():
            with torch.autocast(device.type, training.precision, enabled=mixed):
                logits = model(points.to(device))
                loss = functional.cross_entropy(logits, classes.to(device))
                loss = loss / len(window)
            scaler.scale(loss).backward()
        mean_loss += loss.detach()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if scaler.get_scale() >= scale:  # a lower one tells of a skipped step
        training.scheduler.step()
    return mean_loss


def train_epoch(training: Training, batches: Iterable[Batch], size: int) -> float:
    """One pass over this rank's batches; the mean loss of all ranks' windows."""
    training.model.train()
    loss_and_windows = torch.zeros(2, device=training.device)
    for window in windows(batches, size):
        loss_and_windows[0] += step(training, window)
        loss_and_windows[1] += 1
    dist.all_reduce(loss_and_windows)
    return float(loss_and_windows[0] / loss_and_windows[1])


def save(training: Training, path: Path, epoch: int) -> None:
    """Save after an epoch; every rank calls this and leaves when it is done."""
    if dist.get_rank() == 0:
        partial = path.with_name(path.name + ".partial")
        state = {
            "model": training.model.module.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "scheduler": training.scheduler.state_dict(),
            "scaler": training.scaler.state_dict(),
            "epoch": epoch,
        }
        torch.save(state, partial)
        partial.replace(path)  # a job killed while saving keeps the old file
    dist.barrier()


def load(training: Training, path: Path) -> int:
    """Restore every rank; gives the number of epochs done."""
    state = torch.load(path, map_location=training.device, weights_only=True)
    training.model.module.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.scheduler.load_state_dict(state["scheduler"])
    training.scaler.load_state_dict(state["scaler"])
    return int(state["epoch"]) + 1


def rate_factor(step_number: int, total_steps: int) -> float:
    """Factor of the learning rate: up along a line, then down along a cosine."""
    if step_number < WARM_UP_STEPS:
        return (step_number + 1) / (WARM_UP_STEPS + 1)
    done = (step_number - WARM_UP_STEPS) / max(1, total_steps - WARM_UP_STEPS)
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, done))


def clusters(samples: int, seed: int) -> TensorDataset:
    """Points around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    noise = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(3 * torch.eye(CLASSES, FEATURES)[classes] + noise, classes)


def train(args: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Train and save, epoch by epoch."""
    torch.manual_seed(args.seed)
    known = clusters(336, seed=args.seed + 1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        known, seed=args.seed
    )
    batches = DataLoader(
        known,
        batch_size=args.batch_size,
        sampler=sampler,
        drop_last=True,  # a window's mean of means wants batches of one size
        num_workers=args.workers,
    )
    network = nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, CLASSES),
    )
    model = DistributedDataParallel(
        network.to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total_steps = args.epochs * math.ceil(len(batches) / args.accumulate)
    precision = PRECISIONS[args.precision]
    training = Training(
        model,
        optimizer,
        LambdaLR(optimizer, lambda number: rate_factor(number, total_steps)),
        GradScaler(device.type, enabled=precision is torch.float16),
        precision,
        device,
    )
    path = args.checkpoint or folder / "checkpoint.pt"
    first_epoch = load(training, path) if path.exists() else 0
    for epoch in range(first_epoch, args.epochs)[: args.stop_after]:
        sampler.set_epoch(epoch)
        loss = train_epoch(training, batches, args.accumulate)
        save(training, path, epoch)
        if dist.get_rank() == 0:
            rate = training.scheduler.get_last_lr()[0]
            print(f"epoch {epoch + 1}: loss {loss:.4f}, rate {rate:.5f}", flush=True)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train with mixed precision.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="per rank")
    parser.add_argument("--accumulate", type=int, default=4, help="batches per step")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp16")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    parser.add_argument("--stop-after", type=int, metavar="EPOCHS", help="of this run")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    return parser.parse_args()


def main() -> None:
    """Train on the ranks that torchrun started."""
    args = parse_args()
    # Each rank has its own GPU, or all are on the CPU.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    train(args, device, Path(folder[0]))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    # train() has dropped its model: a DDP reducer freed after the process group
    # is destroyed can hang at exit (torch 2.13).
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
