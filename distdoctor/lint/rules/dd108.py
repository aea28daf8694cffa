"""Some ranks do not come to a call that all have to make.

By a test of the rank, by a return, `continue` or `break` under one, or by a test of
something that each rank has a value of its own of: its loss, its clock.

Found
-----
Rank 0 alone exchanges what it logs, in a function that is called:

    import torch.distributed as dist

    def mean(loss):
        dist.all_reduce(loss)
        return loss / dist.get_world_size()

    def train(loader):
        rank = dist.get_rank()
        for step, loss in enumerate(loader):
            if rank == 0 and step % 10 == 0:
                print(mean(loss))

All ranks but the first leave before a barrier:

    import torch.distributed as dist

    def save(state, path):
        if dist.get_rank() != 0:
            return
        write(state, path)
        dist.barrier()

A rank whose loss is not finite goes on without the others:

    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(network, loader, criterion, optimizer):
        model = DistributedDataParallel(network)
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

Left alone
----------
Logging and saving on rank 0, guards by whether the job is distributed, returns by all,
and groups of some of the ranks:

    import torch
    import torch.distributed as dist

    def mean(loss):
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return loss
        dist.all_reduce(loss)
        return loss / dist.get_world_size()

    def train(args, loader, model, group, members):
        rank = dist.get_rank()
        if args.evaluate:
            return
        for step, loss in enumerate(loader):
            average = mean(loss)
            if rank == 0 and step % 10 == 0:
                print(average)
                torch.save(model.state_dict(), "model.pt")
            if rank in members:
                dist.all_reduce(loss, group=group)
        dist.barrier()

The first rank prepares what the others read, in a context with a half on each side:

    from contextlib import contextmanager

    import torch.distributed as dist

    @contextmanager
    def first_rank_first(local_rank):
        if local_rank not in {-1, 0}:
            dist.barrier()
        yield local_rank
        if local_rank == 0:
            dist.barrier()
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import tell_partings
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding

CODE = "DD108"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Calls that some ranks do not come to."""
    yield from tell_partings(reading, CODE, {How.SKIPPED})
