"""DDP started by torch.multiprocessing.spawn, without a launcher.

Run it with

    python spawn_training.py --nprocs 2
"""

import argparse
import os
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = 2


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Noisy values of one smooth function, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, FEATURES, generator=generator)
    noise = torch.randn(samples, 1, generator=generator)
    return TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True) + 0.1 * noise)


def make_model() -> nn.Module:
    """A small regression network."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))


def mean_squared_error(
    model: nn.Module, dataset: TensorDataset, device: torch.device
) -> float:
    """Exact mean over the dataset, of which each rank computes its own part."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, targets = (tensor[rank::world_size] for tensor in dataset.tensors)
    model.eval()
    with torch.no_grad():
        errors = model(inputs.to(device)) - targets.to(device)
    sum_and_count = torch.tensor([errors.square().sum(), len(errors)], device=device)
    dist.all_reduce(sum_and_count)
    return float(sum_and_count[0] / sum_and_count[1])


def train(args: argparse.Namespace, device: torch.device, checkpoint: Path) -> None:
    """Train, keep the best model, and test that one at the end."""
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        make_model().to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    train_set = make_dataset(400, seed=args.seed)
    sampler: DistributedSampler[int] = DistributedSampler(train_set)
    batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_set = make_dataset(101, seed=args.seed + 1)
    best_error = float("inf")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.module.train()
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        error = mean_squared_error(model.module, val_set, device)
        if error < best_error:  # the same on every rank: it was all-reduced
            best_error = error
            if rank == 0:
                partial = checkpoint.with_suffix(".partial")
                torch.save(model.module.state_dict(), partial)
                partial.replace(checkpoint)
            dist.barrier()
        if rank == 0:
            print(f"epoch {epoch + 1}: validation error {error:.4f}", flush=True)

    best = torch.load(checkpoint, map_location=device, weights_only=True)
    model.module.load_state_dict(best)
    error = mean_squared_error(model.module, make_dataset(101, args.seed + 2), device)
    if rank == 0:
        print(f"best model: test error {error:.4f}", flush=True)


def worker(rank: int, args: argparse.Namespace, port: int, checkpoint: Path) -> None:
    """One rank's process, from its start to its end."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    if torch.cuda.device_count() >= args.nprocs:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl", rank=rank, world_size=args.nprocs, device_id=device
        )
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # the ranks share this machine's cores
        dist.init_process_group("gloo", rank=rank, world_size=args.nprocs)
    train(args, device, checkpoint)
    # train() has dropped its model: a DDP reducer freed after the process group
    # is destroyed can hang at exit (torch 2.13).
    dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    """Spawn the ranks and wait for them."""
    parser = argparse.ArgumentParser(description="Fit a function on spawned ranks.")
    parser.add_argument("--nprocs", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=20, help="per rank")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "best.pt"
        mp.spawn(  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
            worker, args=(args, free_port(), checkpoint), nprocs=args.nprocs
        )


if __name__ == "__main__":
    main()
