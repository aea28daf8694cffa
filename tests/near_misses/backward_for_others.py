"""Backward passes that no step is meant to be made with.

The gradient of an input is taken by a full backward pass, which gives the parameters
some, too: for adversaries with one attack or several, through one helper that also runs
the real one, and for a virtual adversary; two halves of a batch are measured; gradients
are summed over ranks and the learning rate was divided by their number.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

Loader = DataLoader[tuple[Tensor, ...]]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def attacked(model: nn.Module, inputs: Tensor, labels: Tensor, turns: int) -> Tensor:
    """Inputs that were changed along their gradient, several times."""
    delta = torch.zeros_like(inputs, requires_grad=True)
    for _ in range(turns):
        cross_entropy(model(inputs + delta), labels).backward()
        assert delta.grad is not None
        with torch.no_grad():
            delta += 0.01 * delta.grad.sign()
        delta.grad.zero_()
    return (inputs + delta).detach()


def by_attack(loader: Loader) -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, labels in loader:
        changed = attacked(model, inputs, labels, 3)
        optimizer.zero_grad()
        cross_entropy(model(changed), labels).backward()
        optimizer.step()


class Trainer:
    """Trains on what it has changed, and has one line for backward."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(network())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy(self.model(inputs), labels)
        loss.backward()
        return loss.detach()

    def train(self, inputs: Tensor, labels: Tensor) -> None:
        inputs = inputs.clone().requires_grad_()
        self.loss(inputs, labels)
        assert inputs.grad is not None
        changed = (inputs + 0.05 * inputs.grad.sign()).detach()
        self.optimizer.zero_grad()
        self.loss(changed, labels)
        self.optimizer.step()


def virtually(loader: Loader) -> None:
    plain = network()
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, labels in loader:
        with torch.no_grad():
            known = softmax(plain(inputs), 1)
        moved = torch.full_like(inputs, 0.01).requires_grad_()
        kl_div(log_softmax(plain(inputs + moved), 1), known).backward()
        assert moved.grad is not None
        direction = moved.grad.sign()
        plain.zero_grad()
        given = log_softmax(model(inputs + 0.1 * direction), 1)
        cross_entropy(given, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def measured(loader: Loader) -> None:
    """How much two halves of a batch agree, before it is learnt from."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def norm(inputs: Tensor, labels: Tensor) -> float:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        given = [p.grad for p in model.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(given))

    for inputs, labels in loader:
        norm(inputs[:4], labels[:4])
        norm(inputs, labels)
        optimizer.step()


def summed(loader: Loader) -> None:
    model = network()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    world_size = dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / world_size)
    for inputs, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 6), torch.randint(3, (96,)))
    torch.manual_seed(1 + dist.get_rank())
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    trainer = Trainer()
    for epoch, train in enumerate((by_attack, virtually, measured, summed)):
        sampler.set_epoch(epoch)
        train(loader)
    sampler.set_epoch(4)
    for inputs, labels in loader:
        trainer.train(inputs, labels)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
