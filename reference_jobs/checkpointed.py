"""Gradient checkpointing under DDP, with dropout that is drawn once.

Blocks are computed again in backward and not kept. Their dropout must fall as it fell
in forward, so the state of the random numbers is put back for the recomputation. Run it
with

    torchrun --standalone --nproc-per-node 2 checkpointed.py --reentrant
"""

import argparse
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES, WIDTH = 12, 4, 32
MAX_GRADIENT_NORM = 1.0

Batch = Sequence[Tensor]
"""Points, [batch, features], and their classes, [batch] int64."""


class Network(nn.Module):
    """Residual blocks that are recomputed in backward, to save their memory."""

    def __init__(
        self,
        blocks: int = 3,
        dropout: float = 0.2,
        *,
        checkpointing: bool = True,
        reentrant: bool = False,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, WIDTH),
                nn.GELU(),
                nn.Dropout(dropout),
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(WIDTH, CLASSES)
        self.checkpointing = checkpointing
        self.reentrant = reentrant

    def forward(self, points: Tensor) -> Tensor:
        """Logits, [batch, classes], of points, [batch, features]."""
        hidden: Tensor = self.stem(points)
        for block in self.blocks:
            if self.checkpointing and self.training:
                change = checkpoint(
                    block,
                    hidden,
                    use_reentrant=self.reentrant,
                    preserve_rng_state=True,
                )
            else:
                change = block(hidden)
            hidden = hidden + change
        logits: Tensor = self.head(hidden)
        return logits


def step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    batch: Batch,
    device: torch.device,
) -> Tensor:
    """Make a step with a batch; its mean loss on this rank, []."""
    points, classes = batch
    model.train()
    optimizer.zero_grad()
    logits = model(points.to(device))
    loss = functional.cross_entropy(logits, classes.to(device))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    scheduler.step()
    return loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
    """Share of a batch's points that are told right, []; without dropout."""
    points, classes = batch
    model.eval()
    guessed: Tensor = model(points.to(device)).argmax(dim=1)
    return (guessed == classes.to(device)).float().mean()


def clusters(samples: int, seed: int) -> TensorDataset:
    """Points around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (samples,), generator=generator)
    noise = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(3 * torch.eye(CLASSES, FEATURES)[classes] + noise, classes)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train for some epochs."""
    torch.manual_seed(args.seed)
    known = clusters(256, seed=args.seed + 1)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        known, seed=args.seed
    )
    batches = DataLoader(known, batch_size=args.batch_size, sampler=sampler)
    network = Network(checkpointing=args.checkpointing, reentrant=args.reentrant)
    model = DistributedDataParallel(
        network.to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = CosineAnnealingLR(optimizer, args.epochs * len(batches))
    torch.manual_seed(args.seed + dist.get_rank())  # dropout differs between ranks
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        means = torch.zeros(2, device=device)  # loss, accuracy
        for batch in batches:
            means[0] += step(model, optimizer, scheduler, batch, device)
            means[1] += accuracy(model.module, batch, device)
        means /= len(batches) * dist.get_world_size()
        dist.all_reduce(means)
        if dist.get_rank() == 0:
            loss, hits = means.tolist()
            print(f"epoch {epoch + 1}: loss {loss:.4f}, hits {hits:.3f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    flag = argparse.BooleanOptionalAction
    parser = argparse.ArgumentParser(description="Train with recomputed blocks.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="per rank")
    parser.add_argument("--checkpointing", action=flag, default=True)
    parser.add_argument("--reentrant", action=flag, default=False)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # Each rank has its own GPU, or all are on the CPU.
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    # train() has dropped its model: a DDP reducer freed after the process group
    # is destroyed can hang at exit (torch 2.13).
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
