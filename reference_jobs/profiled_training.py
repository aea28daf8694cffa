"""DDP under torch.profiler: some steps of each rank become a trace.

Run it with

    torchrun --standalone --nproc-per-node 2 profiled_training.py --trace-dir traces

and look at the traces in Perfetto, or have `distdoctor examine traces` say what share
of a step is communication that no computation overlaps.
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
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH = 16, 64


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Points, and the sum of the squares of each."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(points, points.square().sum(dim=1, keepdim=True))


def make_profiler(folder: Path, device: torch.device) -> profile:
    """A profiler that is idle, warms up and records, twice, on each rank alike."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":  # else no kernel of NCCL is in the trace
        activities.append(ProfilerActivity.CUDA)
    # One file of each rank and cycle, and no two of one name.
    writes = tensorboard_trace_handler(str(folder), f"rank{dist.get_rank()}")
    cycle = schedule(wait=2, warmup=1, active=4, repeat=2)
    return profile(activities=activities, schedule=cycle, on_trace_ready=writes)


def train(args: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Train, and tell the profiler of each step."""
    torch.manual_seed(args.seed)
    layers = nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = make_dataset(512, seed=1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    batches = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    step = 0
    with make_profiler(folder, device) as profiler:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for points, sums in batches:
                with record_function("forward"):
                    guesses = model(points.to(device))
                loss = nn.functional.mse_loss(guesses, sums.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                profiler.step()  # on all ranks: steps of one number belong together
                step += 1
    if dist.get_rank() == 0:
        print(f"{step} steps", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train, and trace some steps.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace-dir", type=Path, help="else they are not kept")
    args = parser.parse_args()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    folder = tempfile.mkdtemp()
    try:
        train(args, device, args.trace_dir or Path(folder))
    finally:
        shutil.rmtree(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
