"""Ranks of Slurm's srun: each is a task, and the job may be told to make room.

Run it with

    srun --ntasks 2 python slurm_training.py

and, so that it saves before its time is up, with ``sbatch --signal=USR1@120``.
"""

import argparse
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HOURS, WIDTH = 24, 32


class Notice:
    """Whether Slurm has told this task that the job is about to be ended."""

    def __init__(self) -> None:
        self.given = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.given = True

    def any_rank(self, device: torch.device) -> bool:
        """Whether any rank was told; all must ask, at the same point."""
        flag = torch.tensor(float(self.given), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


def first_host() -> str:
    """The host of the first task, which Slurm tells in a short form, as n[04-07]."""
    hosts = os.environ["SLURM_STEP_NODELIST"]
    if int(os.environ["SLURM_NNODES"]) == 1:
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", hosts]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return told.stdout.split()[0]


def join() -> torch.device:
    """Make the process group of all tasks; gives this one's device."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    os.environ.setdefault("MASTER_ADDR", first_host())
    # The same on all tasks, and another one for other jobs of the host.
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) * 7 % 10000
    os.environ.setdefault("MASTER_PORT", str(port))
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():  # Slurm shows a task its own GPU, or all of the node
        local = int(os.environ["SLURM_LOCALID"]) % torch.cuda.device_count()
        device, backend = torch.device("cuda", local), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=size)
    return device


def make_days(days: int, seed: int) -> TensorDataset:
    """Load of a power grid by the hour, and that of the hour after."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.rand(days, 1, generator=generator) * HOURS
    hours = starts + torch.arange(HOURS + 1)
    load = torch.sin(hours * 6.2832 / HOURS) + 0.3 * torch.sin(hours * 6.2832 / 12)
    load += 0.05 * torch.randn(load.shape, generator=generator)
    return TensorDataset(load[:, :-1], load[:, -1:])


def train(args: argparse.Namespace, device: torch.device, checkpoint: Path) -> None:
    """Train, from the checkpoint on if there is one."""
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(HOURS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(
            device
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    first_epoch = 0
    if checkpoint.exists():  # the job was put back into the queue
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"]
    notice = Notice()
    days = make_days(256, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(days)
    batches = DataLoader(days, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(1, device=device)
        for hours, following in batches:
            loss = nn.functional.mse_loss(model(hours.to(device)), following.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        if rank == 0:
            mean = loss_sum.item() / len(batches) / dist.get_world_size()
            print(f"epoch {epoch + 1}: mean squared error {mean:.4f}", flush=True)
            state = {"model": model.module.state_dict(), "epoch": epoch + 1}
            partial = checkpoint.with_name(checkpoint.name + ".partial")
            torch.save(state | {"optimizer": optimizer.state_dict()}, partial)
            partial.replace(checkpoint)
        if notice.any_rank(device):
            break


def main() -> None:
    """Train on the tasks that srun started."""
    parser = argparse.ArgumentParser(description="Train a small model under Slurm.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE")
    args = parser.parse_args()
    device = join()
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    train(args, device, args.checkpoint or Path(folder[0], "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
