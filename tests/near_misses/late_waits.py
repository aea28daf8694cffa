"""Asynchronous work that is waited for late, in another order, or by a thread.

Nothing is touched before its wait: other parts of one buffer are, and copies.
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
