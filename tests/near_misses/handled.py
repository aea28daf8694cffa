"""Exceptions that are met on one rank or on all, told in a log, and cost no call.

A record is replaced by another; the loader begins anew where it ended; a lookup has a
default; a clock that prints on its way out of a block in which something was raised.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANKS = 2

log = logging.getLogger("handled")


@contextmanager
def told(what: str) -> Iterator[None]:
    """Say when it is over."""
    try:
        yield
    finally:
        log.info("%s is over", what)


def checked(rows: Tensor, rank: int, step: int) -> Tensor:
    """The rows, if they are whole."""
    if rank == 1 and step == 2:
        raise ValueError("a record is cut short")
    return rows


def train() -> None:
    """Train, in spite of all."""
    torch.manual_seed(0)
    rows = torch.randn(48, 4)
    rank = dist.get_rank()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(
        TensorDataset(rows), seed=3
    )
    loader = DataLoader(TensorDataset(rows), batch_size=4, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches, epoch = iter(loader), 0
    for step in range(15):
        try:
            (batch,) = next(batches)
        except StopIteration:
            epoch += 1
            log.warning("epoch %d", epoch)
            sampler.set_epoch(epoch)
            batches = iter(loader)
            (batch,) = next(batches)
        try:
            with told("the check"):
                batch = checked(batch, rank, step)
        except ValueError as error:
            log.warning("step %d: %s; its rows are halved", step, error)
            batch = batch / 2
        try:
            {"lr": 0.05}["rate"]
        except KeyError as error:
            warnings.warn(f"no {error}", stacklevel=1)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO)
    train()
    dist.destroy_process_group()
