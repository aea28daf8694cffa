"""HSDP: shards within a group of ranks, replicas of them between the groups.

Run it with

    torchrun --standalone --nproc-per-node 4 hsdp_training.py --shards 2

Neighbouring ranks, as those of one host, share the shards. Checkpoints are written by
all ranks together, and may be read by another number of them.
"""

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH, CLASSES = 12, 32, 4


class Block(nn.Module):
    """Residual MLP block behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer, [batch, width]."""
        update: Tensor = self.down(nn.functional.gelu(self.up(self.norm(hidden))))
        return hidden + update


def make_model(mesh: DeviceMesh) -> nn.Module:
    """The model, sharded block by block over one dimension of the mesh."""
    blocks = [Block() for _ in range(2)]
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES)
    ).to(mesh.device_type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Rows labelled by the quarter of them that has the largest sum."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(samples, FEATURES, generator=generator)
    sums = rows.unflatten(1, (CLASSES, FEATURES // CLASSES)).sum(dim=2)
    return TensorDataset(rows, sums.argmax(dim=1))


def save(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Write all shards, each once, into one folder."""
    weights, moments = get_state_dict(model, optimizer)
    state_dict_saver.save({"model": weights, "optimizer": moments}, checkpoint_id=path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Read what this rank has of it."""
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def train_epochs(
    args: argparse.Namespace,
    epochs: range,
    mesh: DeviceMesh,
    begin: Path | None,
    end: Path,
) -> None:
    """Train from one checkpoint on, if there is one, and write another."""
    torch.manual_seed(args.seed)  # all ranks draw the same model
    model = make_model(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if begin is not None:
        load(model, optimizer, begin)
    dataset = make_dataset(512, args.seed)
    # Each rank reads its own samples, whichever shard it has.
    sampler: DistributedSampler[int] = DistributedSampler(dataset, seed=args.seed)
    batches = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=mesh.device_type)
        for rows, labels in batches:
            optimizer.zero_grad()
            logits = model(rows.to(mesh.device_type))
            loss = nn.functional.cross_entropy(logits, labels.to(mesh.device_type))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean_loss = total.item() / dist.get_world_size() / len(batches)
            print(f"epoch {epoch + 1}: loss {mean_loss:.4f}", flush=True)
    save(model, optimizer, end)


def main() -> None:
    """Train on the ranks that torchrun started, with a new start in the middle."""
    parser = argparse.ArgumentParser(description="Train a small model with HSDP.")
    parser.add_argument("--shards", type=int, default=2, help="of a replica")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size % args.shards:
        parser.error(f"{world_size} ranks do not make replicas of {args.shards}")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    shape = (world_size // args.shards, args.shards)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards"))
    # Ranks share a temporary folder.
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    first, second = Path(folder[0], "first"), Path(folder[0], "second")
    half = args.epochs // 2
    train_epochs(args, range(half), mesh, None, first)
    train_epochs(args, range(half, args.epochs), mesh, first, second)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
