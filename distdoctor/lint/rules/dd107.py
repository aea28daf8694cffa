"""Ranks make the same calls in another order, by a test of the rank.

Found
-----

    import torch.distributed as dist

    def statistics(mean, text):
        if dist.get_rank() == 0:
            dist.barrier()
            dist.broadcast(mean, src=0)
        else:
            dist.broadcast(mean, src=0)
            dist.barrier()

Left alone
----------
One rank goes first, and each calls one barrier:

    import torch.distributed as dist

    def load(path):
        if dist.get_rank() != 0:
            dist.barrier()
        data = read(path)
        if dist.get_rank() == 0:
            dist.barrier()
        return data

Horovod finds by name what was begun, in whatever order:

    import horovod.torch as hvd

    def exchange(first, second):
        if hvd.rank() == 0:
            handles = [hvd.allreduce_async(first, name="a")]
            handles.append(hvd.allgather_async(second, name="b"))
        else:
            handles = [hvd.allgather_async(second, name="b")]
            handles.append(hvd.allreduce_async(first, name="a"))
        return [hvd.synchronize(one) for one in handles]
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import tell_partings
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding

CODE = "DD107"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Calls that others make later or sooner."""
    yield from tell_partings(reading, CODE, {How.SWAPPED})
