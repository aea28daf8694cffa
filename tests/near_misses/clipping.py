"""Gradients that are clipped, scaled or made noisy, and rightly.

The mean is clipped, or a norm that all ranks have in common; a rank weighs gradients
by its tokens; the bound is never reached; noise is added to what is clipped, so that no
single row can be told from the result; signs are sent instead; and layers are scaled by
norms of what is averaged.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

RANKS = 2

STEPS, WIDTH = 9, 6

Change = Callable[[nn.Module], object]


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that are larger on the second rank."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        inputs = (1 + rank) * torch.randn(12, WIDTH, generator=generator)
        yield inputs, inputs.sum(1, keepdim=True)


def train(*changes: Change, wrapped: bool = False) -> None:
    net: nn.Module = DistributedDataParallel(model()) if wrapped else model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for inputs, wanted in batches():
        optimizer.zero_grad()
        mse_loss(net(inputs), wanted).backward()
        for change in changes:
            change(net)
        optimizer.step()


def gradients(net: nn.Module) -> list[Tensor]:
    return [one.grad for one in net.parameters() if one.grad is not None]


def average(net: nn.Module) -> None:
    for gradient in gradients(net):
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def clip(net: nn.Module) -> None:
    clip_grad_norm_(net.parameters(), 0.5)


def clip_hardly(net: nn.Module) -> None:
    clip_grad_norm_(net.parameters(), max_norm=1e6)


def clip_values(net: nn.Module) -> None:
    clip_grad_value_((one for one in net.parameters()), clip_value=0.1)


def clip_together(net: nn.Module) -> None:
    """By the root of all ranks' squares."""
    found = gradients(net)
    square = torch.stack([one.square().sum() for one in found]).sum()
    dist.all_reduce(square)
    for gradient in found:
        gradient *= (0.5 / square.sqrt()).clamp(max=1.0)


def weigh(net: nn.Module) -> None:
    """By the number of tokens that a rank had, of all tokens."""
    tokens = torch.tensor(100.0 + 37.0 * dist.get_rank())
    everybody = tokens.clone()
    dist.all_reduce(everybody)
    for gradient in gradients(net):
        gradient *= tokens / everybody


def add_up(net: nn.Module) -> None:
    for gradient in gradients(net):
        dist.all_reduce(gradient)


def blur(net: nn.Module) -> None:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for gradient in gradients(net):
        gradient += 0.1 * torch.randn(gradient.shape, generator=generator)


def vote(net: nn.Module) -> None:
    """Only the signs are sent, and the majority decides."""
    for gradient in gradients(net):
        gradient.sign_()
        dist.all_reduce(gradient)
        gradient.sign_().mul_(0.01)


class Lars(torch.optim.SGD):
    """Steps that are as long as a share of the weights, on gradients that are means."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weights in group["params"]:
                dist.all_reduce(weights.grad)
                weights.grad /= dist.get_world_size()
                weights.grad *= 0.05 * weights.norm() / weights.grad.norm()
        return super().step(closure)


def layer_by_layer() -> None:
    net = model()
    optimizer = Lars(net.parameters(), lr=0.3)
    for inputs, wanted in batches():
        optimizer.zero_grad()
        mse_loss(net(inputs), wanted).backward()
        optimizer.step()


def accumulated() -> None:
    """Clipped once all batches are in, and averaged."""
    net = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for number, (inputs, wanted) in enumerate(batches(), start=1):
        net.require_backward_grad_sync = number % 3 == 0
        (mse_loss(net(inputs), wanted) / 3).backward()
        if number % 3 == 0:
            clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("gloo")
    train(average, clip)
    train(clip, average, clip)
    train(clip_hardly, average)
    train(average, clip_values)
    train(clip_together, add_up)
    train(weigh, add_up)
    train(clip, blur, average)
    train(vote)
    train(clip, wrapped=True)
    accumulated()
    layer_by_layer()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
