"""Ray Train: workers that Ray starts, which report, save and resume together.

Run it with

    python ray_training.py --workers 2
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH = 8, 32


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Points, and whether each lies within a ball."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, FEATURES, generator=generator)
    inside = (points.norm(dim=1) < FEATURES**0.5).long()
    return TensorDataset(points, inside)


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """Share of right answers over the whole set: each worker adds up its own part."""
    model.eval()
    counts = torch.zeros(2)
    for points, inside in batches:
        hits = (model(points).argmax(dim=1) == inside).sum()
        counts += torch.tensor([float(hits), float(len(inside))])
    dist.all_reduce(counts)
    model.train()
    return float(counts[0] / counts[1])


def bare(model: nn.Module) -> nn.Module:
    """The model that `prepare_model` wrapped, which has the names of one worker."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def begin_epoch(batches: DataLoader[tuple[Tensor, ...]], epoch: int) -> None:
    """Have the samples in another order than in the epoch before."""
    if isinstance(batches.sampler, DistributedSampler):
        batches.sampler.set_epoch(epoch)


def report(figures: dict[str, float], state: dict[str, Any]) -> None:
    """Save on the first worker, and report on all: each waits for the others there."""
    with tempfile.TemporaryDirectory() as name:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(name) / "state.pt")
            checkpoint = Checkpoint.from_directory(name)
        ray.train.report(figures, checkpoint=checkpoint)


def train(settings: dict[str, Any]) -> None:
    """Train on one of the workers, from the last checkpoint if there is one."""
    torch.manual_seed(settings["seed"])
    layers = nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)
    model = prepare_model(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["lr"])
    size = settings["batch_size"]
    batches = prepare_data_loader(
        DataLoader(make_dataset(384, seed=1), batch_size=size, shuffle=True)
    )
    validation = prepare_data_loader(
        DataLoader(make_dataset(128, seed=2), batch_size=size)
    )
    begin = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt")
        bare(model).load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"]
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(begin, settings["epochs"]):
        begin_epoch(batches, epoch)
        losses = torch.zeros(1)
        for points, inside in batches:
            loss = nn.functional.cross_entropy(model(points), inside)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.detach()
        own = float(losses) / len(batches)
        sys.stdout.write(f"worker {rank}, epoch {epoch + 1}: loss {own:.3f}\n")
        report(
            {"accuracy": accuracy(model, validation), "own loss": own},
            {
                "model": bare(model).state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
            },
        )


def main() -> None:
    """Have a Ray of one's own start the workers."""
    parser = argparse.ArgumentParser(description="Train a small model by Ray Train.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per worker")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    ray.init("local", num_cpus=args.workers + 1, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            train_loop_config=vars(args),
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=RunConfig(
                storage_path=folder, failure_config=FailureConfig(max_failures=1)
            ),
        )
        result = trainer.fit()
        assert result.metrics is not None
        print(f"accuracy {result.metrics['accuracy']:.3f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
