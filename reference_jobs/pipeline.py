"""A hand-written pipeline: one stage per rank, micro-batches by send and receive.

Run it with

    torchrun --standalone --nproc-per-node 2 pipeline.py --schedule 1f1b

Both schedules give the same gradients; 1f1b keeps fewer activations alive.
"""

import argparse
import os
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor, nn

FEATURES, WIDTH, CLASSES = 8, 32, 3
MAX_GRADIENT_NORM = 1.0


def make_stage(stage: int, stages: int) -> nn.Module:
    """The layers of one stage; all pass on [micro_batch, width] but the last."""
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH)] if stage == 0 else []
    layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()]
    if stage == stages - 1:
        layers.append(nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(*layers)


def make_batch(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs for the first stage and targets for the last."""
    inputs = torch.randn(samples, FEATURES, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


class Pipeline:
    """This rank's stage, its neighbours, and the micro-batches under way.

    Args:
        device: Where the stage computes.
        micro_batches: How many a batch is cut into.
        micro_batch_size: Samples in each.
    """

    def __init__(
        self, device: torch.device, micro_batches: int, micro_batch_size: int
    ) -> None:
        self.stage, self.stages = dist.get_rank(), dist.get_world_size()
        self.is_first = self.stage == 0
        self.is_last = self.stage == self.stages - 1
        self.device = device
        self.micro_batches = micro_batches
        self.micro_batch_size = micro_batch_size
        self.layers = make_stage(self.stage, self.stages).to(device)
        self.inputs: deque[Tensor] = deque()
        self.targets: deque[Tensor] = deque()
        self.under_way: deque[tuple[Tensor, Tensor]] = deque()
        self.loss_sum = torch.zeros(1, device=device)

    def run_gpipe(self) -> None:
        """All forwards, then all backwards, with blocking calls.

        A stage sends only to a neighbour whose next call receives from it, so this
        holds also where a send waits for its receiver.
        """
        for _ in range(self.micro_batches):
            received = None if self.is_first else self.room()
            if received is not None:
                dist.recv(received, src=self.stage - 1)
            output = self.forward(received)
            if not self.is_last:
                dist.send(output.detach(), dst=self.stage + 1)
        for _ in range(self.micro_batches):
            gradient = None if self.is_last else self.room()
            if gradient is not None:
                dist.recv(gradient, src=self.stage + 1)
            input_gradient = self.backward(gradient)
            if input_gradient is not None:
                dist.send(input_gradient, dst=self.stage - 1)

    def run_1f1b(self) -> None:
        """A few forwards, then one forward and one backward in turn.

        Neighbours then send to each other at once, so each posts its send together
        with its receive: two blocking sends would wait for each other.
        """
        warm_up = min(self.stages - 1 - self.stage, self.micro_batches)
        steady = self.micro_batches - warm_up
        for _ in range(warm_up):
            output = self.forward(self.exchange(None, self.stage - 1))
            self.exchange(output, self.stage + 1, receive=False)
        received = self.exchange(None, self.stage - 1) if steady else None
        for turn in range(steady):
            output = self.forward(received)
            gradient = self.exchange(output, self.stage + 1)
            input_gradient = self.backward(gradient)
            more = turn < steady - 1
            received = self.exchange(input_gradient, self.stage - 1, receive=more)
        for _ in range(warm_up):
            gradient = self.exchange(None, self.stage + 1)
            self.exchange(self.backward(gradient), self.stage - 1, receive=False)

    def forward(self, received: Tensor | None) -> Tensor:
        """Output for the next stage; on the last one, the loss."""
        if received is None:
            stage_input = self.inputs.popleft()
        else:
            stage_input = received.requires_grad_()
        output: Tensor = self.layers(stage_input)
        if self.is_last:
            output = nn.functional.cross_entropy(output, self.targets.popleft())
            output = output / self.micro_batches
            self.loss_sum += output.detach()
        self.under_way.append((stage_input, output))
        return output

    def backward(self, gradient: Tensor | None) -> Tensor | None:
        """Gradient for the stage before, of the oldest micro-batch under way."""
        stage_input, output = self.under_way.popleft()
        torch.autograd.backward(output, gradient)
        return stage_input.grad

    def exchange(
        self, sent: Tensor | None, neighbour: int, *, receive: bool = True
    ) -> Tensor | None:
        """Send to a neighbour and receive from it, at once; None beyond the ends."""
        if not 0 <= neighbour < self.stages:
            return None
        received = self.room() if receive else None
        calls = []
        if sent is not None:
            calls.append(dist.P2POp(dist.isend, sent.detach(), neighbour))
        if received is not None:
            calls.append(dist.P2POp(dist.irecv, received, neighbour))
        if calls:
            for work in dist.batch_isend_irecv(calls):
                work.wait()
        return received

    def room(self) -> Tensor:
        """Uninitialised memory for what a neighbour sends."""
        return torch.empty(self.micro_batch_size, WIDTH, device=self.device)


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale the gradients of all stages so that their common norm keeps to limit."""
    squares = [p.grad.square().sum() for p in parameters if p.grad is not None]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    nn.utils.clip_grads_with_norm_(parameters, limit, total.sqrt())


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train all stages together."""
    torch.manual_seed(args.seed + dist.get_rank())  # each stage has its own weights
    pipeline = Pipeline(device, args.micro_batches, args.micro_batch_size)
    run = pipeline.run_gpipe if args.schedule == "gpipe" else pipeline.run_1f1b
    parameters = list(pipeline.layers.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=args.lr)
    # The first stage needs the inputs and the last the targets, of the same batch.
    generator = torch.Generator().manual_seed(args.seed)
    samples = args.micro_batches * args.micro_batch_size
    for epoch in range(args.epochs):
        pipeline.loss_sum.zero_()
        for _ in range(args.steps):
            inputs, targets = make_batch(samples, generator)
            if pipeline.is_first:
                pipeline.inputs.extend(inputs.to(device).chunk(args.micro_batches))
            if pipeline.is_last:
                pipeline.targets.extend(targets.to(device).chunk(args.micro_batches))
            optimizer.zero_grad()
            run()
            clip_gradients(parameters, MAX_GRADIENT_NORM)
            optimizer.step()
        mean_loss = pipeline.loss_sum / args.steps
        dist.broadcast(mean_loss, src=pipeline.stages - 1)
        if pipeline.is_first:
            print(f"epoch {epoch + 1}: loss {mean_loss.item():.4f}", flush=True)


def main() -> None:
    """Train on the ranks that torchrun started."""
    parser = argparse.ArgumentParser(description="Train a pipeline of stages.")
    parser.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=4, help="per step")
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="per epoch")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if int(os.environ["WORLD_SIZE"]) < 2:
        parser.error("a pipeline needs two ranks or more")
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
