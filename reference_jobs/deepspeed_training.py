"""DeepSpeed's engine with ZeRO, on the ranks of its own launcher.

Run it with

    deepspeed --num_accelerators 2 deepspeed_training.py --stage 2
"""

import argparse
import os
import shutil
import tempfile
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH, CLASSES = 16, 48, 4


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """What DeepSpeed is told of the training."""
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": args.stage,
            "reduce_bucket_size": 4096,
            "stage3_param_persistence_threshold": 64,
        },
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**6,
    }


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Points around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    points = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(points + 2 * torch.eye(CLASSES, FEATURES)[classes], classes)


def make_model() -> nn.Module:
    """A small network."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, CLASSES),
    )


@torch.no_grad()
def evaluate(engine: Any, dataset: TensorDataset) -> float:
    """Accuracy over the dataset, of which each rank takes its part in one batch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    points, classes = (one[rank::world_size] for one in dataset.tensors)
    engine.eval()
    right = (engine(points.to(engine.device)).argmax(dim=1).cpu() == classes).sum()
    sums = torch.tensor([float(right), len(points)], device=engine.device)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def train(args: argparse.Namespace, folder: str) -> float:
    """Train, save, and load again; gives the accuracy."""
    torch.manual_seed(args.seed)
    settings = configuration(args)
    with deepspeed.zero.Init(config_dict_or_path=settings, enabled=args.stage == 3):
        model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    train_set, val_set = make_dataset(512, seed=1), make_dataset(101, seed=2)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_set)
    batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        engine.train()
        for points, classes in batches:
            logits = engine(points.to(engine.device))
            loss = nn.functional.cross_entropy(logits, classes.to(engine.device))
            engine.backward(loss)
            engine.step()
    accuracy = evaluate(engine, val_set)
    engine.save_checkpoint(folder, tag="last")  # on all ranks: each has a part
    engine.load_checkpoint(folder, tag="last")
    assert evaluate(engine, val_set) == accuracy
    engine.destroy()
    return accuracy


def main() -> None:
    """Train on the ranks that the launcher started."""
    parser = argparse.ArgumentParser(description="Train a small model by DeepSpeed.")
    parser.add_argument("--stage", type=int, choices=[0, 1, 2, 3], default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=0)  # the launcher's
    args = parser.parse_args()
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    deepspeed.init_distributed()
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    accuracy = train(args, folder[0])
    if dist.get_rank() == 0:
        print(f"ZeRO-{args.stage}: accuracy {accuracy:.3f}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
