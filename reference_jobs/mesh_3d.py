"""Data, pipeline and tensor parallelism on a 3-D device mesh.

Run it with

    torchrun --standalone --nproc-per-node 8 mesh_3d.py --pp 2 --tp 2

Neighbouring ranks share layers (tp), stages follow each other (pp), and what is left of
the ranks are replicas (dp), which read other samples and average their gradients.
"""

import argparse
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

FEATURES, WIDTH, CLASSES, BLOCKS = 8, 16, 4, 4
MAX_GRADIENT_NORM = 0.5


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


def make_stage(mesh: DeviceMesh) -> nn.Sequential:
    """The layers of this rank's stage, split over tp; all draw the model alike."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH)]
    layers += [FeedForward() for _ in range(BLOCKS)]
    layers.append(nn.Linear(WIDTH, CLASSES))
    stage, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    bounds = [len(layers) * number // stages for number in range(stages + 1)]
    mine = nn.Sequential(*layers[bounds[stage] : bounds[stage + 1]])
    for layer in mine.to(mesh.device_type):
        if isinstance(layer, FeedForward):
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, mesh["tp"], plan)
    return mine


def average_gradients(parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """Replace each gradient by its mean over the replicas."""
    for parameter in parameters:
        gradient = parameter.grad
        mine = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        assert mine is not None
        dist.all_reduce(mine, group=mesh.get_group("dp"))
        mine /= mesh["dp"].size()


def clip_gradients(parameters: Sequence[nn.Parameter], mesh: DeviceMesh) -> None:
    """Scale the gradients of all stages so that their common norm keeps to a limit."""
    squares = []
    for parameter in parameters:
        assert parameter.grad is not None
        square = parameter.grad.square().sum()
        # Over all parts of the tensor, where it is split over tp.
        squares.append(square.full_tensor() if isinstance(square, DTensor) else square)
    total = torch.stack(squares).sum()
    dist.all_reduce(total, group=mesh.get_group("pp"))
    scale = (MAX_GRADIENT_NORM / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(scale)


def train(args: argparse.Namespace, mesh: DeviceMesh) -> None:
    """Train, and print the loss averaged over the replicas."""
    torch.manual_seed(args.seed)
    stage, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    replica, replicas = mesh["dp"].get_local_rank(), mesh["dp"].size()
    layers = make_stage(mesh)
    schedule = Schedule1F1B(
        PipelineStage(
            layers,
            stage,
            stages,
            torch.device(mesh.device_type),
            group=mesh.get_group("pp"),
        ),
        args.micro_batches,
        nn.functional.cross_entropy,
    )
    parameters = list(layers.parameters())
    # Several at once, as is usual on GPUs, cannot be both split tensors and whole ones.
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, foreach=False)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        # All draw the whole batch, of which each replica takes its part.
        batch = torch.randn(args.batch_size, FEATURES, generator=generator)
        inputs = batch.chunk(replicas)[replica].to(mesh.device_type)
        optimizer.zero_grad()
        given = (inputs,) if stage == 0 else ()
        losses: list[Tensor] = []
        if stage == stages - 1:
            targets = inputs[:, :CLASSES].argmax(dim=1)
            schedule.step(*given, target=targets, losses=losses)
        else:
            schedule.step(*given)
        average_gradients(parameters, mesh)
        clip_gradients(parameters, mesh)
        optimizer.step()
        if losses and step % 5 == 4:
            mean_loss = torch.stack(losses).mean()
            dist.all_reduce(mean_loss, group=mesh.get_group("dp"))
            if dist.get_rank() == dist.get_world_size() - 1:
                shown = mean_loss.item() / replicas
                print(f"step {step + 1}: loss {shown:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train on a dp x pp x tp mesh.")
    parser.add_argument("--pp", type=int, default=2, help="stages of a replica")
    parser.add_argument("--tp", type=int, default=2, help="ranks of a stage")
    parser.add_argument("--micro-batches", type=int, default=4, help="per step")
    parser.add_argument("--batch-size", type=int, default=64, help="of all replicas")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    world_size, of_replica = int(os.environ["WORLD_SIZE"]), args.pp * args.tp
    if world_size % of_replica:
        parser.error(f"{world_size} ranks do not make replicas of {of_replica}")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    shape = (world_size // of_replica, args.pp, args.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    train(args, mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
