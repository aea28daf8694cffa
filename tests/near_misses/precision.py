"""Low precision used rightly: autocast, and weights that are kept in half on purpose.

Checkpoints compute anew, under autocast, while backward runs; an own function has a
backward pass of its own; and a penalty asks for gradients inside of the forward pass.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

RANKS = 2

WIDTH, STEPS = 8, 6


class Doubled(torch.autograd.Function):
    """Twice its input, in float32 whatever autocast says."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Deep(nn.Module):
    """Its middle is computed anew while backward runs."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 32)
        self.block = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.last = nn.Linear(32, 1)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.first(x))
        hidden = checkpoint(self.block, hidden, use_reentrant=self.reentrant)
        doubled: Any = Doubled.apply(hidden)  # type: ignore[no-untyped-call]
        return self.last(doubled)


def lowered() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def batch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + seed)
    return torch.randn(16, WIDTH, generator=generator)


def wrapped(model: nn.Module) -> Any:
    return DistributedDataParallel(model)


def checkpointed(*, reentrant: bool) -> None:
    model = wrapped(Deep(reentrant=reentrant))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = batch(step)
        optimizer.zero_grad()
        with lowered():
            loss = mse_loss(model(x).float(), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()


def penalised() -> None:
    """A critic with a penalty on its gradient."""
    model = wrapped(nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = batch(step).requires_grad_()
        optimizer.zero_grad()
        with lowered():
            scores = model(x).float()
            (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
            loss = scores.mean() + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()


class Compensated(torch.optim.Optimizer):
    """Gradient descent in bfloat16 that adds the rest of a rounding the next time."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 - as in torch
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                rest = state.get("rest", 0.0)
                whole = parameter.float() - group["lr"] * parameter.grad.float() + rest
                parameter.copy_(whole)
                state["rest"] = whole - parameter.float()


def in_bfloat16(kind: Any, lr: float) -> None:
    """All in bfloat16, with steps that it can show or with a mended rounding."""
    layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1))
    model = wrapped(layers.to(torch.bfloat16))
    optimizer = kind(model.parameters(), lr=lr)
    for step in range(STEPS):
        x = batch(step).to(torch.bfloat16)
        optimizer.zero_grad()
        mse_loss(model(x).float(), x.float().sum(1, keepdim=True)).backward()
        optimizer.step()


def with_copies() -> None:
    """Weights in float16 that are rounded from copies which Adam steps."""
    model = wrapped(nn.Linear(WIDTH, 1).half())
    halves = list(model.parameters())
    copies = [nn.Parameter(one.detach().float()) for one in halves]
    optimizer = torch.optim.Adam(copies, lr=1e-4)
    for step in range(STEPS):
        x = batch(step).half()
        model.zero_grad()
        (8 * mse_loss(model(x).float(), x.float().sum(1, keepdim=True))).backward()
        for copy, half in zip(copies, halves, strict=True):
            copy.grad = half.grad.float() / 8
        optimizer.step()
        with torch.no_grad():
            for copy, half in zip(copies, halves, strict=True):
                half.copy_(copy)


class Adapted(nn.Module):
    """A frozen layer in float16, and what is learnt in addition."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, 32).half().requires_grad_(requires_grad=False)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x))
        kept: Tensor = self.base(x.half()).float()
        return kept + added


def adapted() -> None:
    model = wrapped(Adapted())
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    checkpointed(reentrant=False)
    checkpointed(reentrant=True)
    penalised()
    in_bfloat16(torch.optim.AdamW, 1e-2)
    in_bfloat16(Compensated, 1e-3)
    with_copies()
    adapted()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
