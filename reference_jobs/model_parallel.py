"""Layers placed on two devices by hand, and replicas of that averaged by DDP.

Run it with

    torchrun --standalone --nproc-per-node 2 model_parallel.py

Each rank has two GPUs where there are enough. Otherwise both halves are on the CPU.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SIZE, CLASSES = 8, 4


class TwoDevices(nn.Module):
    """Convolutions on the first device, and layers behind them on the second."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
        ).to(first)
        self.layers = nn.Sequential(
            nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, CLASSES)
        ).to(second)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits, on the second device."""
        seen = self.convolutions(pictures.to(self.first))
        logits: Tensor = self.layers(seen.to(self.second))
        return logits


def make_pictures(count: int, seed: int) -> TensorDataset:
    """Noise with a bright spot, labelled by the quarter in which that is."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    rows, columns = torch.randint(SIZE, (2, count), generator=generator)
    pictures[torch.arange(count), 0, rows, columns] += 6
    half = SIZE // 2
    return TensorDataset(pictures, 2 * (rows >= half) + (columns >= half).long())


def own_devices() -> tuple[torch.device, torch.device]:
    """Two GPUs for each rank of this machine, or the CPU twice."""
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() >= 2 * ranks:
        first, second = 2 * local, 2 * local + 1
        return torch.device("cuda", first), torch.device("cuda", second)
    return torch.device("cpu"), torch.device("cpu")


def train(args: argparse.Namespace) -> None:
    """Train, and print the loss averaged over the ranks."""
    torch.manual_seed(args.seed)
    first, second = own_devices()
    # DDP must not move a model of several devices: it is told of none.
    model = DistributedDataParallel(TwoDevices(first, second))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    dataset = make_pictures(512, args.seed)
    sampler: DistributedSampler[int] = DistributedSampler(dataset, seed=args.seed)
    batches = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=second)
        for pictures, quarters in batches:
            optimizer.zero_grad()
            # The loss is where the logits are.
            loss = nn.functional.cross_entropy(model(pictures), quarters.to(second))
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(batches)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean_loss = total.item() / dist.get_world_size()
            print(f"epoch {epoch + 1}: loss {mean_loss:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a model on two devices.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    first, _ = own_devices()
    dist.init_process_group("nccl" if first.type == "cuda" else "gloo")
    train(args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
