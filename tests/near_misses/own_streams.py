"""Random streams, files, settings and memory of each rank's own, as they should be."""

import argparse
import json
import os
import random
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

RANKS = 2

Pair = tuple[torch.Tensor, torch.Tensor]


class Springs(Dataset[Pair]):
    """Noise by a generator that each worker makes for itself, and by numpy's stream."""

    def __init__(self, noisy: bool) -> None:
        table = np.random.default_rng(3)  # the same data on all ranks
        self.loads = table.normal(size=(64, 6)).astype(np.float32)
        self.noisy = noisy
        self.rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.loads)

    def __getitem__(self, index: int) -> Pair:
        if self.rng is None:
            worker = get_worker_info()
            assert worker is not None
            self.rng = np.random.default_rng(worker.seed)
        load = self.loads[index].copy()
        if self.noisy:
            load += self.rng.normal(scale=0.05, size=6) + np.random.normal(scale=0.05)
        else:
            load += np.random.normal(scale=0.01)  # the same each time: see below
        load += random.Random(index).random() * 0.01  # a sample's own
        return torch.from_numpy(load), torch.from_numpy(load.sum(keepdims=True))


def from_worker(_worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def always_alike(_worker: int) -> None:
    np.random.seed(0)  # validation is to be the same in each epoch


def shared_folder() -> Path:
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(names, src=0)
    return Path(names[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=int(os.environ["RANK"]))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(["--verbose"] if os.environ["RANK"] == "0" else [])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    random.seed(17)  # alike on purpose: see `size`
    np.random.seed(17 + rank)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    )
    torch.manual_seed(17 + rank)
    folder = shared_folder()
    for turn in range(dist.get_world_size()):
        if turn == rank:
            (folder / "roll.txt").write_text(f"{rank}\n")  # in turn
        dist.barrier()
    if rank == 0:
        (folder / "options.json").write_text(json.dumps(vars(options)))
    dist.barrier()
    json.loads((folder / "options.json").read_text())
    springs = Springs(noisy=True)
    sampler: DistributedSampler[Pair] = DistributedSampler(springs, seed=17)
    loader = DataLoader(springs, 4, sampler=sampler, num_workers=2)
    seeded = DataLoader(
        springs, 4, sampler=sampler, num_workers=2, worker_init_fn=from_worker
    )
    held_out = DataLoader(
        Springs(noisy=False), 8, num_workers=2, worker_init_fn=always_alike
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": model.module[0].parameters(), "lr": 0.01},
            {"params": model.module[2].parameters()},
        ],
        lr=0.02,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    curve: list[float] = []
    recent: deque[torch.Tensor] = deque(maxlen=5)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for loads, lengths in loader if epoch < 2 else seeded:
            size = random.choice([2, 4])  # all ranks cut their batches alike
            optimizer.zero_grad()
            loss = mse_loss(model(loads[:size]), lengths[:size])
            loss.backward()
            optimizer.step()
            scheduler.step()
            curve.append(loss.item())
            recent.append(loss)  # the last few, with their graphs
        model.eval()
        with torch.no_grad():
            for loads, lengths in held_out:
                mse_loss(model.module(loads), lengths)
        model.train()
        with (folder / f"curve.{rank}.json").open("w") as out:
            json.dump(curve, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
