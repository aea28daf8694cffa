"""A healthy training job that is written for GPUs, as most are.

Everything that names CUDA is hard-coded: devices, NCCL, mixed precision, pinned memory,
streams and events, SyncBatchNorm, statistics of memory. Run it with

    torchrun --nproc-per-node 2 -m distdoctor.reference_jobs.cuda_training

on as many GPUs, or `distdoctor check reference_jobs/cuda_training.py` without any.
`--spawn` starts a rank for each GPU that it sees.
"""

from __future__ import annotations

# Much of torch that is used here has no types.
# mypy: allow-untyped-calls
import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 4


class Trainer:
    """Trains one replica on one GPU."""

    def __init__(self, model: nn.Module, loader: DataLoader[Any], gpu_id: int) -> None:
        self.gpu_id = gpu_id
        self.loader = loader
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model.to(gpu_id))
        assert next(model.parameters()).is_cuda
        self.model = DistributedDataParallel(model, device_ids=[gpu_id])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.scaler = torch.amp.GradScaler("cuda")
        self.copies = torch.cuda.Stream()

    def train_epoch(self, epoch: int) -> float:
        """Train on each batch of this rank's; the mean loss of all ranks."""
        self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        total = torch.zeros(2, device="cuda")
        for images, labels in self.loader:
            with torch.cuda.stream(self.copies):
                images = images.cuda(non_blocking=True)
                labels = labels.to(f"cuda:{self.gpu_id}", non_blocking=True)
            torch.cuda.current_stream().wait_stream(self.copies)
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(self.model(images), labels)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            total += torch.stack([loss.detach(), torch.ones_like(loss)])
        dist.all_reduce(total)
        return float(total[0] / total[1])

    def save_and_load(self, file: Path) -> None:
        """Rank 0 saves, and every rank loads to its own GPU."""
        if self.gpu_id == 0:
            torch.save(self.model.module.state_dict(), file)
        dist.barrier(device_ids=[self.gpu_id])
        state = torch.load(file, map_location={"cuda:0": f"cuda:{self.gpu_id}"})
        self.model.module.load_state_dict(state)


def build() -> nn.Module:
    """A small network with normalisation over batches."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def train(gpu_id: int, epochs: int, file: Path) -> None:
    """What one rank does, in a job that exists already."""
    torch.cuda.set_device(gpu_id)
    torch.cuda.manual_seed(gpu_id)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(0, CLASSES, (64,))
    dataset = TensorDataset(images, labels)
    loader = DataLoader(
        dataset, batch_size=8, sampler=DistributedSampler(dataset), pin_memory=True
    )
    trainer = Trainer(build(), loader, gpu_id)
    begun = torch.cuda.Event(enable_timing=True)
    done = torch.cuda.Event(enable_timing=True)
    begun.record()
    for epoch in range(epochs):
        loss = trainer.train_epoch(epoch)
        if gpu_id == 0:
            gib = torch.cuda.max_memory_allocated() / 2**30
            print(f"epoch {epoch}: loss {loss:.3f}, {gib:.1f} GiB", flush=True)
    done.record()
    torch.cuda.synchronize()
    if gpu_id == 0:
        print(f"{begun.elapsed_time(done):.0f} ms on {torch.cuda.get_device_name()}")
    trainer.save_and_load(file)


def join(gpu_id: int, epochs: int, file: Path, init_method: str, world: int) -> None:
    """A rank that was spawned."""
    dist.init_process_group(
        "nccl", init_method=init_method, rank=gpu_id, world_size=world
    )
    train(gpu_id, epochs, file)
    dist.destroy_process_group()


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--spawn", action="store_true")
    options = parser.parse_args()
    if options.spawn:
        world = torch.cuda.device_count()
        with tempfile.TemporaryDirectory() as folder:
            meeting = f"file://{folder}/meeting"
            given = (options.epochs, Path(folder) / "model.pt", meeting, world)
            mp.spawn(join, args=given, nprocs=world)  # type: ignore[attr-defined]
        return
    gpu_id = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", gpu_id)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    file = [tempfile.mktemp(".pt") if gpu_id == 0 else ""]  # noqa: S306 - one writer
    dist.broadcast_object_list(file)
    train(gpu_id, options.epochs, Path(file[0]))
    dist.barrier()
    if gpu_id == 0:
        Path(file[0]).unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
