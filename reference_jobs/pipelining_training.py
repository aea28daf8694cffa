"""torch.distributed.pipelining: a language model cut into stages, run by a schedule.

Run it with

    torchrun --standalone --nproc-per-node 2 pipelining_training.py --schedule 1f1b

With `interleaved`, each rank has two stages that do not follow each other.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

VOCABULARY, WIDTH, CONTEXT = 32, 24, 6
BLOCKS = 4
MAX_GRADIENT_NORM = 1.0


class Block(nn.Module):
    """Mixes earlier positions into each one, then each position by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Parameter(torch.eye(CONTEXT) + torch.rand(CONTEXT, CONTEXT) / 4)
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of the next layer, [batch, context, width]."""
        mixed: Tensor = self.feed_forward(self.mix.tril() @ self.norm(hidden))
        return hidden + mixed


def make_layers() -> list[nn.Module]:
    """All layers of the model; what leaves the last are logits of the next token."""
    first, last = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    return [first, *(Block() for _ in range(BLOCKS)), last]


def layers_of(stage: int, stages: int) -> nn.Sequential:
    """What one stage has of the model; all ranks draw the whole of it alike."""
    layers = make_layers()
    bounds = [len(layers) * number // stages for number in range(stages + 1)]
    return nn.Sequential(*layers[bounds[stage] : bounds[stage + 1]])


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over a micro-batch; the schedule divides by the number of these."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_texts(count: int, generator: torch.Generator) -> Tensor:
    """Texts in which each token follows, by a fixed rule, from the last but one."""
    texts = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator)
    for position in range(2, CONTEXT + 1):
        texts[:, position] = (5 * texts[:, position - 2] + 1) % VOCABULARY
    return texts


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale the gradients of all stages so that their common norm keeps to limit."""
    squares = [p.grad.square().sum() for p in parameters if p.grad is not None]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    nn.utils.clip_grads_with_norm_(parameters, limit, total.sqrt())


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train all stages together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = 2 * ranks if args.schedule == "interleaved" else ranks
    stages = []
    for number in range(rank, count, ranks):
        torch.manual_seed(args.seed)
        layers = layers_of(number, count).to(device)
        stages.append(PipelineStage(layers, number, count, device))
    parts, loss_function = args.micro_batches, next_token_loss
    schedule: ScheduleGPipe | Schedule1F1B | ScheduleInterleaved1F1B
    if args.schedule == "gpipe":
        schedule = ScheduleGPipe(stages[0], parts, loss_function)
    elif args.schedule == "1f1b":
        schedule = Schedule1F1B(stages[0], parts, loss_function)
    else:
        schedule = ScheduleInterleaved1F1B(list(stages), parts, loss_function)
    parameters = [one for stage in stages for one in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9)
    # The first stage needs the inputs and the last the targets, of the same batch.
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        texts = make_texts(args.batch_size, generator).to(device)
        losses: list[Tensor] = []
        inputs = (texts[:, :-1].contiguous(),) if rank == 0 else ()
        if rank == ranks - 1:
            schedule.step(*inputs, target=texts[:, 1:], losses=losses)
        else:
            schedule.step(*inputs)
        clip_gradients(parameters, MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if losses and step % 10 == 9:
            mean_loss = torch.stack(losses).mean().item()
            print(f"step {step + 1}: loss {mean_loss:.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a pipeline of stages.")
    names = ["gpipe", "1f1b", "interleaved"]
    parser.add_argument("--schedule", choices=names, default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=4, help="per step")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
