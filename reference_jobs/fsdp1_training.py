"""FSDP1: FullyShardedDataParallel around each block, resumed from a whole checkpoint.

Run it with

    torchrun --standalone --nproc-per-node 2 fsdp1_training.py
"""

import argparse
import functools
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

Sharded = FullyShardedDataParallel

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


def make_model(device: torch.device) -> Sharded:
    """The model, each block of which is sharded by itself."""
    blocks = [Block() for _ in range(3)]
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES)
    )
    policy = functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={Block}
    )
    return Sharded(
        model, auto_wrap_policy=policy, use_orig_params=True, device_id=device
    )


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Rows labelled by the quarter of them that has the largest sum."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(samples, FEATURES, generator=generator)
    sums = rows.unflatten(1, (CLASSES, FEATURES // CLASSES)).sum(dim=2)
    return TensorDataset(rows, sums.argmax(dim=1))


def save(model: Sharded, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Gather model and optimizer, which all ranks must help with; save on one."""
    # What is on the CPU already would be freed (torch 2.13).
    on_gpu = next(model.parameters()).is_cuda
    whole = FullStateDictConfig(offload_to_cpu=on_gpu, rank0_only=True)
    with Sharded.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        state = {
            "model": model.state_dict(),
            "optimizer": Sharded.optim_state_dict(model, optimizer),
        }
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def load(model: Sharded, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Read all of it on each rank, which keeps its shards."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    with Sharded.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state["model"])
        mine = Sharded.optim_state_dict_to_load(model, optimizer, state["optimizer"])
        optimizer.load_state_dict(mine)


def train_epochs(
    args: argparse.Namespace, epochs: range, device: torch.device, path: Path
) -> None:
    """Train from the checkpoint on, if there is one, and save."""
    torch.manual_seed(args.seed)  # ranks start alike
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if path.exists():
        load(model, optimizer, path)
    dataset = make_dataset(512, args.seed)
    sampler: DistributedSampler[int] = DistributedSampler(dataset, seed=args.seed)
    batches = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for rows, labels in batches:
            optimizer.zero_grad()
            logits = model(rows.to(device))
            loss = nn.functional.cross_entropy(logits, labels.to(device))
            loss.backward()
            model.clip_grad_norm_(1.0)  # the norm is that of all shards
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean_loss = total.item() / dist.get_world_size() / len(batches)
            print(f"epoch {epoch + 1}: loss {mean_loss:.4f}", flush=True)
    save(model, optimizer, path)


def main() -> None:
    """Train on the ranks that torchrun started, with a new start in the middle."""
    parser = argparse.ArgumentParser(description="Train a small model with FSDP1.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # torch means to replace it by FSDP2, and says so.
    warnings.filterwarnings("ignore", category=FutureWarning)
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    # Ranks share a temporary folder.
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    path, half = Path(folder[0], "whole.pt"), args.epochs // 2
    train_epochs(args, range(half), device, path)
    train_epochs(args, range(half, args.epochs), device, path)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
