"""Asynchronous work that is waited for late, in another order, or by a thread.

Nothing is used before its wait: other parts of one buffer are, and copies, and what
is only sent.
"""

import threading

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2

WIDTH = 8


def reduce_in_buckets(model: nn.Module) -> None:
    """A flat buffer is filled bucket by bucket, while those before are on their way."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.zeros(sum(gradient.numel() for gradient in gradients))
    share = 1 / dist.get_world_size()
    handles, start = [], 0
    for gradient in reversed(gradients):
        bucket = flat[start : start + gradient.numel()]
        bucket.copy_(gradient.flatten() * share)
        handles.append(dist.all_reduce(bucket, async_op=True))
        start += gradient.numel()
    order = handles if dist.get_rank() else handles[::-1]
    for handle in order:
        if handle is not None:
            handle.wait()
    start = 0
    for gradient in reversed(gradients):
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def prefetch(steps: int) -> None:
    """Two buffers in turn: one is on its way while the other one is used."""
    buffers = [torch.zeros(WIDTH), torch.zeros(WIDTH)]
    handle = dist.broadcast(buffers[0], src=0, async_op=True)
    for step in range(steps):
        if handle is not None:
            handle.wait()
        following = buffers[(step + 1) % 2]
        if dist.get_rank() == 0:
            following.fill_(step)
        handle = dist.broadcast(following, src=0, async_op=True)
        buffers[step % 2].mul_(2)
    if handle is not None:
        handle.wait()


class Feed:
    """Gathers one batch ahead; who takes a room gets that of the call before."""

    def __init__(self) -> None:
        self.room = torch.zeros(0)
        self.work: dist.Work | None = None

    def finish(self) -> torch.Tensor:
        """Wait for what is on its way, and give it."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.room

    def turn(self, share: torch.Tensor) -> torch.Tensor:
        """Begin to gather, and give what was gathered before."""
        before = self.finish()
        self.room = torch.zeros(dist.get_world_size() * len(share))
        self.work = dist.all_gather_into_tensor(self.room, share, async_op=True)
        return before


def overlap(feed: Feed, share: torch.Tensor) -> float:
    """Compute with shares, shapes and originals while results are on their way."""
    total = feed.turn(share).sum()
    mean = share.clone()
    work = dist.all_reduce(mean, async_op=True)
    size = mean.shape[0] * dist.get_world_size()
    rooms = [mean.view(2, -1)]
    total = total + share.mean()
    sent = torch.full_like(share, dist.get_rank())
    message = dist.isend(sent, 1) if dist.get_rank() == 0 else dist.irecv(sent, 0)
    if dist.get_rank() == 0:
        total = total + sent.sum()
    if message is not None:
        message.wait()
    if work is not None:
        work.wait()
    return (total + torch.cat(rooms).sum() / size).item()


def report(losses: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """A thread that averages the losses, on a group of its own."""
    for loss in losses:
        dist.all_reduce(loss, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    metrics = dist.new_group()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, late, waiting = [], [], []
    for batch in torch.randn(6, 4, WIDTH):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        reduce_in_buckets(model)
        optimizer.step()
        losses.append(loss.detach().clone())
        mean = loss.detach().clone()
        late.append(mean)
        waiting.append(dist.all_reduce(mean, async_op=True))
    reporter = threading.Thread(target=report, args=(losses, metrics))
    reporter.start()
    prefetch(4)
    feed = Feed()
    for batch in torch.randn(3, WIDTH):
        overlap(feed, batch)
    feed.finish().sum().item()
    reporter.join()
    for handle in waiting:  # of all steps, after the last one
        if handle is not None:
            handle.wait()
    torch.stack(late).mean().item()
    finish = dist.barrier(async_op=True)
    if finish is not None:
        finish.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
