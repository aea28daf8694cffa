"""DDP under torchrun: accumulation, AMP, evaluation, checkpoints, resumption.

Run it with

    torchrun --standalone --nproc-per-node 2 ddp_training.py --epochs 3

and go on from where it stopped with ``--checkpoint FILE --resume``.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None
if HAS_TENSORBOARD:
    from torch.utils.tensorboard import SummaryWriter

FEATURES, CLASSES, WIDTH = 16, 4, 64
WARMUP_STEPS = 8
MAX_GRADIENT_NORM = 1.0

Batches = DataLoader[tuple[Tensor, Tensor]]


class Clusters(Dataset[tuple[Tensor, Tensor]]):
    """Points around one centre per class, jittered anew at every drawing."""

    def __init__(self, samples: int, seed: int, jitter: float = 0.0) -> None:
        centres = torch.eye(CLASSES, FEATURES) * 4
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(CLASSES, (samples,), generator=generator)
        noise = torch.randn(samples, FEATURES, generator=generator)
        self.points = centres[self.targets] + noise
        self.jitter = jitter

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = self.points[index]
        if self.jitter:
            point = point + self.jitter * torch.randn(FEATURES)
        return point, self.targets[index]


class Classifier(nn.Module):
    """Residual MLP, whose blocks can be recomputed in backward to save memory."""

    def __init__(self, blocks: int = 3, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))
            for _ in range(blocks)
        )
        self.head = nn.Linear(WIDTH, CLASSES)
        self.checkpointing = checkpointing

    def forward(self, points: Tensor) -> Tensor:
        """Logits, [batch, classes], of points, [batch, features]."""
        hidden: Tensor = self.stem(points)
        for block in self.blocks:
            if self.checkpointing and self.training:
                hidden = hidden + checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = hidden + block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


@dataclass
class Training:
    """All that changes while training, and so goes into a checkpoint."""

    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scheduler: LinearLR
    scaler: GradScaler
    shuffling: torch.Generator  # the loader draws its workers' seeds from it
    device: torch.device

    def save(self, path: Path, epoch: int) -> None:
        """Save after an epoch; every rank calls this and leaves when it is done."""
        generators: dict[str, Tensor] = {
            "torch": torch.get_rng_state(),
            "loader": self.shuffling.get_state(),
        }
        if self.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.device)
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, generators)
        if dist.get_rank() == 0:
            partial = path.with_name(path.name + ".partial")
            torch.save(
                {
                    "model": self.model.module.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(),
                    "scaler": self.scaler.state_dict(),
                    "generators": by_rank,
                    "epoch": epoch,
                },
                partial,
            )
            partial.replace(path)  # a job killed while saving keeps the old file
        dist.barrier()

    def load(self, path: Path) -> int:
        """Restore every rank; gives the number of epochs done."""
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.scaler.load_state_dict(saved["scaler"])
        if len(saved["generators"]) == dist.get_world_size():
            generators = saved["generators"][dist.get_rank()]
            # map_location moved these too, but generators want them on the CPU.
            torch.set_rng_state(generators["torch"].cpu())
            self.shuffling.set_state(generators["loader"].cpu())
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(generators["cuda"].cpu(), self.device)
        return int(saved["epoch"]) + 1


def train_epoch(
    training: Training, batches: Batches, args: argparse.Namespace
) -> float:
    """Mean loss over all ranks of one pass over the training set."""
    model, device, scaler = training.model, training.device, training.scaler
    precision = torch.float16 if device.type == "cuda" else torch.bfloat16
    loss_and_count = torch.zeros(2, device=device)
    model.module.train()
    for index, (points, targets) in enumerate(batches):
        points, targets = points.to(device), targets.to(device)
        first = index - index % args.accumulate
        window = min(args.accumulate, len(batches) - first)  # the last may be short
        steps_now = index + 1 == first + window
        with contextlib.nullcontext() if steps_now else model.no_sync():
            with torch.autocast(device.type, dtype=precision, enabled=args.amp):
                logits = model(points)
            loss = functional.cross_entropy(logits.float(), targets)
            scaler.scale(loss / window).backward()
        loss_and_count[0] += loss.detach() * len(targets)
        loss_and_count[1] += len(targets)
        if steps_now:
            scaler.unscale_(training.optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            scale = scaler.get_scale()
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
            if scaler.get_scale() >= scale:  # a lower one tells of a skipped step
                training.scheduler.step()
    dist.all_reduce(loss_and_count)
    return float(loss_and_count[0] / loss_and_count[1])


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Batches, device: torch.device) -> Tensor:
    """Mean loss and accuracy, [2], over all samples of all ranks."""
    sums = torch.zeros(3, device=device)  # loss, hits, samples
    model.eval()
    for points, targets in batches:
        points, targets = points.to(device), targets.to(device)
        logits = model(points)
        sums[0] += functional.cross_entropy(logits, targets, reduction="sum")
        sums[1] += (logits.argmax(dim=1) == targets).sum()
        sums[2] += len(targets)
    dist.all_reduce(sums)
    return sums[:2] / sums[2]


def train(args: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Train, evaluate and save, epoch by epoch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        Classifier(checkpointing=args.checkpointing).to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    training = Training(
        model,
        optimizer,
        LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP_STEPS),
        GradScaler(device.type, enabled=args.amp and device.type == "cuda"),
        torch.Generator().manual_seed(args.seed + rank),
        device,
    )
    torch.manual_seed(args.seed + rank)  # dropout and jitter differ between ranks

    train_set = Clusters(330, seed=args.seed + 1, jitter=0.1)
    sampler: DistributedSampler[int] = DistributedSampler(train_set, seed=args.seed)
    train_batches = DataLoader(
        train_set,
        batch_size=args.batch_size,
        sampler=sampler,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        generator=training.shuffling,
    )
    # Not a DistributedSampler: its padding would count some samples twice.
    val_set = Clusters(125, seed=args.seed + 2)
    val_part = Subset(val_set, range(rank, len(val_set), world_size))
    val_batches = DataLoader(val_part, batch_size=args.batch_size)

    path = args.checkpoint or folder / "checkpoint.pt"
    first_epoch = training.load(path) if args.resume else 0
    writer = None
    if rank == 0 and HAS_TENSORBOARD:
        writer = SummaryWriter(args.log_dir or folder / "runs")
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        train_loss = train_epoch(training, train_batches, args)
        val_loss, accuracy = evaluate(model.module, val_batches, device).tolist()
        training.save(path, epoch)
        if writer is not None:
            writer.add_scalar("loss/train", train_loss, epoch)
            writer.add_scalar("loss/val", val_loss, epoch)
            writer.add_scalar("accuracy/val", accuracy, epoch)
        if rank == 0:
            print(
                f"epoch {epoch + 1}: train loss {train_loss:.4f}, "
                f"val loss {val_loss:.4f}, val accuracy {accuracy:.3f}",
                flush=True,
            )
    if writer is not None:
        writer.close()


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small classifier with DDP.")
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--accumulate", type=int, default=4, help="batches per step")
    parser.add_argument("--amp", action=flag, default=True)
    parser.add_argument("--checkpointing", action=flag, default=False)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="from --checkpoint")
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="loader processes")
    args = parser.parse_args()
    if args.resume and args.checkpoint is None:
        parser.error("--resume needs --checkpoint")
    return args


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
    # Ranks share a temporary folder, for what the command line names no place.
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
