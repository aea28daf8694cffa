"""Tensor and data parallelism on a 2-D device mesh, with a subgroup for metrics.

Neighbouring ranks share the layers of one replica (tp), and replicas share the
samples (dp). Four ranks make 2x2, two make 1x2, or 2x1 with ``--tp 1``:

    torchrun --standalone --nproc-per-node 4 device_mesh.py --tp 2

Replicas average their gradients by hand, or are sharded with ``--fsdp``.
"""

import argparse
import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, CLASSES = 32, 4


class FeedForward(nn.Module):
    """Residual MLP block; ``up`` is split by columns and ``down`` by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer, [batch, width]."""
        update: Tensor = self.down(nn.functional.gelu(self.up(hidden)))
        return hidden + update


class Classifier(nn.Module):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(FeedForward(), FeedForward())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Log-probabilities, [batch, classes], of inputs, [batch, width]."""
        logits: Tensor = self.head(self.blocks(inputs))
        return logits.log_softmax(dim=1)


def make_dataset(samples: int, seed: int) -> TensorDataset:
    """Samples labelled by their largest among the first features."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(dim=1))


def make_model(mesh: DeviceMesh, *, fsdp: bool) -> nn.Module:
    """The model with its layers split over tp, and sharded over dp if asked."""
    model = Classifier().to(mesh.device_type)
    plan = {
        "blocks.*.up": ColwiseParallel(),
        "blocks.*.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh["tp"], plan)
    if fsdp:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    return model


def average_gradients(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
    """Replace each gradient by its mean over the replicas."""
    replicas = mesh["dp"].size()
    for parameter in parameters:
        assert isinstance(parameter.grad, DTensor)
        shard = parameter.grad.to_local()
        dist.all_reduce(shard, group=mesh.get_group("dp"))
        shard /= replicas


def train(args: argparse.Namespace, mesh: DeviceMesh) -> None:
    """Train, and print the loss averaged over the replicas."""
    rank, replica = dist.get_rank(), mesh["dp"].get_local_rank()
    replicas, tp_size = mesh["dp"].size(), mesh["tp"].size()
    # One rank of each replica: the even ranks, where tp is 2. Every rank takes
    # part in making the group, but only its members use it.
    leaders = list(range(0, dist.get_world_size(), tp_size))
    leaders_group = dist.new_group(leaders)

    torch.manual_seed(args.seed)  # replicas start alike; nothing else makes them so
    model = make_model(mesh, fsdp=args.fsdp)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    dataset = make_dataset(512, seed=args.seed)
    # The ranks of one replica draw the same samples.
    sampler: DistributedSampler[int] = DistributedSampler(
        dataset, num_replicas=replicas, rank=replica, seed=args.seed
    )
    batches = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(1, device=mesh.device_type)
        for inputs, targets in batches:
            optimizer.zero_grad()
            log_probabilities = model(inputs.to(mesh.device_type))
            loss = criterion(log_probabilities, targets.to(mesh.device_type))
            loss.backward()
            if not args.fsdp:
                average_gradients(model.parameters(), mesh)
            optimizer.step()
            loss_sum += loss.detach()
        if rank in leaders:
            dist.all_reduce(loss_sum, group=leaders_group)
        if rank == 0:
            mean_loss = loss_sum.item() / len(leaders) / len(batches)
            print(f"epoch {epoch + 1}: loss {mean_loss:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train on a dp x tp mesh.")
    parser.add_argument("--tp", type=int, default=2, help="ranks per replica")
    parser.add_argument("--fsdp", action="store_true", help="shard the replicas")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="per replica")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size % args.tp:
        parser.error(f"{world_size} ranks do not make replicas of {args.tp}")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    mesh = init_device_mesh(
        device.type, (world_size // args.tp, args.tp), mesh_dim_names=("dp", "tp")
    )
    train(args, mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
