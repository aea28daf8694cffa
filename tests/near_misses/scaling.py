"""A GradScaler used in all the ways that are right, and gradients without one."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

RANKS = 2

STEPS = 6

OWN = torch.Generator()


def data() -> Iterator[tuple[Tensor, Tensor]]:
    """Each rank's own, and new ones in each part."""
    for _ in range(STEPS):
        rows = torch.randn(8, 3, generator=OWN)
        yield rows, rows.sum(1, keepdim=True)


def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    inside = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    model = DistributedDataParallel(inside)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def losses(model: nn.Module) -> Iterator[Tensor]:
    for inputs, labels in data():
        with torch.autocast("cpu", torch.float16):
            guess = model(inputs)
        yield mse_loss(guess.float(), labels)


def clipped() -> None:
    """Behind `unscale_`; to infinity, to learn the norm; to what is scaled, too."""
    (model, optimizer), scaler = learner(), GradScaler("cpu")
    for number, loss in enumerate(losses(model)):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), float("inf"))
        if number % 2:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.5)
            clip_grad_value_(model.parameters(), 0.1)
        else:
            clip_grad_norm_(model.parameters(), 0.5 * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()


def accumulated() -> None:
    """Three batches to a step, and the norm is shown of a copy."""
    (model, optimizer), scaler = learner(), GradScaler("cpu", init_scale=256.0)
    for number, loss in enumerate(losses(model), start=1):
        scaler.scale(loss / 3).backward()
        if number % 3 == 0:
            scale = scaler.get_scale()
            norms = [
                p.grad.norm() / scale for p in model.parameters() if p.grad is not None
            ]
            assert norms
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def two_in_turns() -> None:
    """As in a GAN: the second loss goes through the first one's model; one update."""
    (judge, first), (forger, second) = learner(), learner()
    widen = nn.Linear(1, 3)
    widen.requires_grad_(requires_grad=False)
    scaler = GradScaler("cpu", init_scale=512.0)
    for inputs, _ in data():
        forged = widen(forger(inputs))
        first.zero_grad()
        real, fake = judge(torch.cat([inputs, forged.detach()])).chunk(2)
        loss = binary_cross_entropy_with_logits(real, torch.ones_like(real))
        loss = loss + binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        scaler.scale(loss).backward()
        scaler.step(first)
        second.zero_grad()
        fake = judge.module(forged)  # type: ignore[operator]
        loss = binary_cross_entropy_with_logits(fake, torch.ones_like(fake))
        scaler.scale(loss).backward()
        scaler.step(second)
        scaler.update()


def one_without() -> None:
    """The loss of the second optimizer is not scaled, and nor is its step."""
    (model, optimizer), (other, plain) = learner(), learner()
    scaler = GradScaler("cpu", init_scale=512.0)
    for loss, another in zip(losses(model), losses(other), strict=True):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        plain.zero_grad()
        another.backward()
        clip_grad_norm_(other.parameters(), 0.1)
        plain.step()


def switched_off(enabled: bool, scale: float) -> None:
    """Nothing is scaled: whatever is done is right."""
    model, optimizer = learner()
    scaler = GradScaler(
        "cpu", enabled=enabled, init_scale=scale, growth_interval=1_000_000
    )
    for loss in losses(model):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def by_hand() -> None:
    """The job divides, looks for Inf on all ranks, and steps itself."""
    (model, optimizer), scaler = learner(), GradScaler("cpu", init_scale=1024.0)
    for loss in losses(model):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale, fine = scaler.get_scale(), torch.ones(())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
            fine *= torch.isfinite(parameter.grad).all()
        dist.all_reduce(fine, op=dist.ReduceOp.MIN)
        clip_grad_norm_(model.parameters(), 0.5)
        if fine:
            optimizer.step()


def scaled_by_hand() -> None:
    """The job multiplies the loss itself; a first call makes the scale."""
    (model, optimizer), scaler = learner(), GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    for loss in losses(model):
        optimizer.zero_grad()
        (loss * scaler.get_scale()).backward()
        scaler.step(optimizer)
        scaler.update()


def asked_for() -> None:
    """Gradients are asked for, and given to the parameters."""
    model = nn.Linear(3, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    parameters = list(model.parameters())
    for inputs, labels in data():
        loss = mse_loss(model(inputs), labels)
        given = torch.autograd.grad(scaler.scale(loss), parameters)
        for parameter, gradient in zip(parameters, given, strict=True):
            dist.all_reduce(gradient)
            parameter.grad = gradient / RANKS
        scaler.step(optimizer)
        scaler.update()


def left_out_together() -> None:
    """One rank's loss is infinite; its gradients are averaged, and all leave it out."""
    (model, optimizer), scaler = learner(), GradScaler("cpu", init_scale=1024.0)
    for number, loss in enumerate(losses(model)):
        optimizer.zero_grad()
        worse = 1e36 if number == 2 and dist.get_rank() == 1 else 1.0
        scaler.scale(loss * worse).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def not_made() -> None:
    """A batch is left out by all behind `unscale_`, and the scaler is told a scale."""
    (model, optimizer), scaler = learner(), GradScaler("cpu", init_scale=1024.0)
    for number, loss in enumerate(losses(model)):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if number == 3:
            scaler.update(512.0)
            continue
        scaler.step(optimizer)
        scaler.update()


def bfloat16() -> None:
    """Needs no scaler."""
    model, optimizer = learner()
    for inputs, labels in data():
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(model(inputs).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    OWN.manual_seed(dist.get_rank())
    clipped()
    accumulated()
    two_in_turns()
    one_without()
    switched_off(enabled=False, scale=65536.0)
    switched_off(enabled=True, scale=1.0)
    by_hand()
    scaled_by_hand()
    asked_for()
    left_out_together()
    not_made()
    bfloat16()
    dist.destroy_process_group()
