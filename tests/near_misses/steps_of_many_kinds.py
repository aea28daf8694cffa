"""Steps that are made in many ways, each with the gradients that it should have.

Gradients are cleared by whatever, or by the optimizer itself; some serve another
optimizer, are looked at and dropped, or move the weights before the real pass. Scalers
skip, steps have closures or are made inside of backward, ranks average by hand, or now
and then.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

STEPS, WIDTH = 9, 6


def net(width: int = 1) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, width))


def learner(
    **options: bool,
) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    ddp = DistributedDataParallel(net(), **options)  # type: ignore[arg-type]
    return ddp, torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.5)


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(8, WIDTH, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def cleared_by_whatever(generator: torch.Generator) -> None:
    """By the model, by hand, in place, through `.data`."""
    model, optimizer = learner(gradient_as_bucket_view=True)
    for at in range(2 * STEPS):
        inputs, labels = batch(generator)
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        if at % 4 == 0:
            model.zero_grad()
        elif at % 4 == 1:
            for parameter in model.parameters():
                parameter.grad = None
        elif at % 4 == 2:
            torch._foreach_zero_(gradients) if gradients else None
        else:
            for gradient in gradients:
                gradient.data.zero_()
        mse_loss(model(inputs), labels).backward()
        optimizer.step()


def cleared_by_the_optimizer(generator: torch.Generator) -> None:
    model, optimizer = learner()

    def clear(*_: object) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()

    optimizer.register_step_post_hook(clear)
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        mse_loss(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def dropped_by_the_optimizer(generator: torch.Generator) -> None:
    model, optimizer = learner()
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        mse_loss(model(inputs), labels).backward()
        optimizer.step()


class Sharpness(torch.optim.Optimizer):
    """Around another optimizer: the gradients at hand only move the weights."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups = inner, inner.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], object]) -> None:  # type: ignore[override]
        parameters = [one for group in self.param_groups for one in group["params"]]
        moves = [0.05 * one.grad for one in parameters]
        torch._foreach_add_(parameters, moves)
        self.zero_grad()
        torch.enable_grad()(closure)()
        torch._foreach_sub_(parameters, moves)
        self.inner.step()
        self.zero_grad()


def perturbed_inside_of_a_step(generator: torch.Generator) -> None:
    model, inner = learner()
    optimizer = Sharpness(inner)
    for _ in range(STEPS):
        inputs, labels = batch(generator)

        def closure(inputs: Tensor = inputs, labels: Tensor = labels) -> None:
            mse_loss(model(inputs), labels).backward()

        closure()
        optimizer.step(closure)


def decaying(generator: torch.Generator) -> None:
    """Gradients of earlier steps count less and less, on purpose."""
    model, optimizer = learner()
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        mse_loss(model(inputs), labels).backward()
        optimizer.step()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)


def two_players(generator: torch.Generator) -> None:
    """Both losses go backward before both steps; a critic steps twice as often."""
    artist, critic = DistributedDataParallel(net(WIDTH)), DistributedDataParallel(net())
    of_artist = torch.optim.Adam(artist.parameters(), lr=0.01)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    for at in range(2 * STEPS):
        inputs, labels = batch(generator)
        made = artist(inputs)
        if at % 2:
            of_artist.zero_grad()
            critic(made).mean().backward()
            of_artist.step()
        of_critic.zero_grad()
        mse_loss(
            critic(torch.cat([inputs, made.detach()])), labels.repeat(2, 1)
        ).backward()
        of_critic.step()


def perturbed(generator: torch.Generator) -> None:
    """Sharpness-aware: the first pass only moves the weights, for the second."""
    model, optimizer = learner()
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        mse_loss(model(inputs), labels).backward()
        moves = [0.05 * one.grad for one in model.parameters() if one.grad is not None]
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.data.add_(move)
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.data.sub_(move)
        optimizer.step()
        optimizer.zero_grad()


def measured(generator: torch.Generator) -> None:
    """Now and then, norms of gradients are looked at; a batch in four is bad."""
    model, optimizer = learner()
    inputs, labels = batch(generator)
    mse_loss(model(inputs), labels).backward()  # to warm up
    for at in range(4 * STEPS):
        inputs, labels = batch(generator)
        optimizer.zero_grad()
        mse_loss(model(inputs), labels).backward()
        if at % 4 == 3:
            continue
        optimizer.step()


def per_task(generator: torch.Generator) -> None:
    """The gradients of several losses are kept apart, and put together by hand."""
    model, optimizer = learner()
    parameters = list(model.parameters())
    for _ in range(STEPS):
        kept = [torch.zeros_like(one) for one in parameters]
        for _ in range(3):
            inputs, labels = batch(generator)
            optimizer.zero_grad()
            mse_loss(model(inputs), labels).backward()
            for one, parameter in zip(kept, parameters, strict=True):
                assert parameter.grad is not None
                one.add_(parameter.grad.sign() / 3)
        for one, parameter in zip(kept, parameters, strict=True):
            parameter.grad = one
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def penalised(generator: torch.Generator) -> None:
    """A penalty on the gradient for the inputs: backward goes through backward."""
    model, optimizer = learner()
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        inputs.requires_grad_()
        out = model(inputs)
        (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        (mse_loss(out, labels) + slope.square().mean()).backward()
        optimizer.step()


def scaled(generator: torch.Generator) -> None:
    """Two optimizers and one scaler, which clips and skips; windows of three."""
    model = DistributedDataParallel(net())
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.SGD(parameters[:2], lr=0.02),
        torch.optim.Adam(parameters[2:], lr=0.01),
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for at in range(3 * STEPS):
        inputs, labels = batch(generator)
        last = at % 3 == 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if last:
                loss = mse_loss(model(inputs).float(), labels) / 3
            else:
                with model.no_sync():
                    loss = mse_loss(model(inputs).float(), labels) / 3
        if at == 14:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if last:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()


def inside_of_backward(generator: torch.Generator) -> None:
    """An optimizer for each parameter steps when its gradient is whole."""
    model = net()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
        optimizer = torch.optim.SGD([parameter], lr=0.02)

        def step(one: Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            assert one.grad is not None
            dist.all_reduce(one.grad)
            one.grad /= RANKS
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        inputs, labels = batch(generator)
        mse_loss(model(inputs), labels).backward()


def averaged_by_hand(generator: torch.Generator) -> None:
    """All passes are local, and one message averages what they gave."""
    model, optimizer = learner()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for _ in range(3):
                inputs, labels = batch(generator)
                (mse_loss(model(inputs), labels) / 3).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        flat = torch.cat([one.reshape(-1) for one in gradients])
        dist.all_reduce(flat)
        at = 0
        for gradient in gradients:
            count = gradient.numel()
            gradient.copy_(flat[at : at + count].view_as(gradient) / RANKS)
            at += count
        optimizer.step()


def now_and_then(generator: torch.Generator) -> None:
    """Local steps, and an average of the weights after each third."""
    model, optimizer = learner()
    for at in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = batch(generator)
        with model.no_sync():
            mse_loss(model(inputs), labels).backward()
        optimizer.step()
        if at % 3 == 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= RANKS


def toggled(generator: torch.Generator) -> None:
    """The wrapper is told by its attribute when to average."""
    model, optimizer = learner()
    for at in range(2 * STEPS):
        inputs, labels = batch(generator)
        model.require_backward_grad_sync = at % 2 == 1
        (mse_loss(model(inputs), labels) / 2).backward()
        if at % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    model.require_backward_grad_sync = True


KINDS: tuple[Callable[[torch.Generator], None], ...] = (
    cleared_by_whatever,
    cleared_by_the_optimizer,
    dropped_by_the_optimizer,
    perturbed_inside_of_a_step,
    decaying,
    two_players,
    perturbed,
    measured,
    per_task,
    penalised,
    scaled,
    inside_of_backward,
    averaged_by_hand,
    now_and_then,
    toggled,
)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for train in KINDS:
        train(drawn)
    dist.destroy_process_group()
