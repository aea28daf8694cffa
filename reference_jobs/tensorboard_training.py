"""Curves in TensorBoard: means of all ranks from rank 0, and a folder for each rank.

Run it with

    torchrun --standalone --nproc-per-node 2 tensorboard_training.py --log-dir runs
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.tensorboard import SummaryWriter

FEATURES, WIDTH = 10, 32


class Curves:
    """What is written down: of all ranks by rank 0, and of each rank by itself."""

    def __init__(self, folder: Path) -> None:
        rank = dist.get_rank()
        self.common = SummaryWriter(str(folder / "all")) if rank == 0 else None
        # Two writers in one folder would be one curve that jumps to and fro.
        self.own = SummaryWriter(str(folder / f"rank{rank}"))

    def mean(self, name: str, value: Tensor, step: int) -> None:
        """Write the mean over all ranks; all must call this."""
        mean = value.detach().clone()
        dist.all_reduce(mean)
        if self.common is not None:
            self.common.add_scalar(name, mean.item() / dist.get_world_size(), step)

    def mine(self, name: str, value: float, step: int) -> None:
        """Write what is this rank's alone."""
        self.own.add_scalar(name, value, step)

    def close(self) -> None:
        """Write down what is still in memory."""
        self.own.close()
        if self.common is not None:
            self.common.close()


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Points, and the length of each."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(points, points.norm(dim=1, keepdim=True))


def train(args: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Train, and write curves of loss, rate, weights and pace."""
    torch.manual_seed(args.seed)
    layers = nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = make_dataset(256, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    batches = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    curves = Curves(folder)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss_sum, started = torch.zeros(1, device=device), time.monotonic()
        for points, lengths in batches:
            loss = nn.functional.mse_loss(model(points.to(device)), lengths.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            step += 1
        seconds = time.monotonic() - started
        curves.mean("loss/train", loss_sum / len(batches), epoch)
        curves.mine("pace/batches per second", len(batches) / seconds, epoch)
        if curves.common is not None:  # replicas are alike: no rank has to be asked
            curves.common.add_scalar("rate", scheduler.get_last_lr()[0], epoch)
            for name, parameter in model.module.named_parameters():
                curves.common.add_histogram(name, parameter.detach().cpu(), epoch)
        scheduler.step()
    curves.close()
    if dist.get_rank() == 0:
        files = sorted(path.parent.name for path in folder.glob("*/events*"))
        print(f"{step} steps; curves in {', '.join(files)}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train, and write for TensorBoard.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-dir", type=Path)
    args = parser.parse_args()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    train(args, device, args.log_dir or Path(folder[0]))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
