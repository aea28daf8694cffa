"""Ranks of mpirun: MPI tells who is who, torch.distributed averages the gradients.

Run it with

    mpirun -np 2 python mpi_training.py
"""

import argparse
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SENSORS, WIDTH = 12, 32


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])


def meet(comm: MPI.Intracomm, rendezvous: str) -> torch.device:
    """Make the process group of all ranks of MPI; gives this rank's device.

    Args:
        comm: All ranks.
        rendezvous: "tcp", at an address of rank 0's, or "file", in a common folder.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank, local_size = host.Get_rank(), host.Get_size()
    host.Free()
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.device_count() >= local_size:
        device, backend = torch.device("cuda", local_rank), "nccl"
        torch.cuda.set_device(device)
    method = ""
    if rank == 0 and rendezvous == "tcp":
        address = "127.0.0.1" if local_size == size else socket.getfqdn()
        method = f"tcp://{address}:{free_port()}"
    elif rank == 0:
        method = f"file://{tempfile.mkdtemp()}/meeting"
    method = comm.bcast(method, root=0)  # each rank would choose another one
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size)
    return device


def read_shards(comm: MPI.Intracomm, samples: int) -> TensorDataset:
    """Rank 0 has the measurements and hands each rank what belongs to it."""
    parts: list[tuple[Tensor, Tensor]] | None = None
    if comm.Get_rank() == 0:
        generator = torch.Generator().manual_seed(7)
        readings = torch.randn(samples, SENSORS, generator=generator)
        weights = torch.randn(SENSORS, 1, generator=generator)
        targets = readings.tanh() @ weights
        size = comm.Get_size()
        shards = readings.chunk(size), targets.chunk(size)
        parts = list(zip(*shards, strict=True))
    readings, targets = comm.scatter(parts, root=0)
    return TensorDataset(readings, targets)


def train(args: argparse.Namespace, comm: MPI.Intracomm, device: torch.device) -> None:
    """Train on this rank's shard, and tell what all have learned."""
    rank = comm.Get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(SENSORS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(
            device
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    shard = read_shards(comm, 384)
    generator = torch.Generator().manual_seed(args.seed + rank)
    batches = DataLoader(
        shard, batch_size=args.batch_size, shuffle=True, generator=generator
    )
    for epoch in range(args.epochs):
        total, count = 0.0, 0
        for readings, targets in batches:
            readings, targets = readings.to(device), targets.to(device)
            loss = nn.functional.mse_loss(model(readings), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(readings)
            count += len(readings)
        # What is on the host already needs no group of torch.
        total, count = comm.allreduce(total), comm.allreduce(count)
        if rank == 0:
            print(f"epoch {epoch + 1}: mean squared error {total / count:.4f}")


def save(model: nn.Module, comm: MPI.Intracomm, path: Path) -> None:
    """Save on one rank, while the others wait."""
    if comm.Get_rank() == 0:
        torch.save(model.state_dict(), path)
    comm.Barrier()


def main() -> None:
    """Train on the ranks that mpirun started."""
    parser = argparse.ArgumentParser(description="Train a small model under MPI.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rendezvous", choices=["tcp", "file"], default="tcp")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    device = meet(comm, args.rendezvous)
    train(args, comm, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
