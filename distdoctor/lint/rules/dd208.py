"""Each rank goes through its own share of some data, and communicates at each item.

Where the number of items is no multiple of the number of ranks, the first ranks have
one more. Advice, since nobody sees in the text how many there are.

Found
-----

    import torch.distributed as dist

    def train(files, model):
        rank, size = dist.get_rank(), dist.get_world_size()
        for file in files[rank::size]:
            loss = model(file)
            dist.all_reduce(loss)

Left alone
----------
The shares are cut to one length, or who has no more answers the others:

    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join

    def train(files, model, shared):
        rank, size = dist.get_rank(), dist.get_world_size()
        even = files[: len(files) // size * size]
        for file in range(len(even) // size):
            loss = model(file)
            dist.all_reduce(loss)
        with Join([shared]):
            for file in files[rank::size]:
                dist.all_reduce(model(file))
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.parted_ranks import How
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.model.findings import Severity

CODE = "DD208"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Loops over shares that may differ in length, with a call in them."""
    for parting in reading.partings:
        if parting.how is How.UNEVEN and parting.turn is not None:
            step, loop = parting.step, parting.turn.spot
            what = step.communication.name
            yield SourceFinding(
                code=CODE,
                message=f"each rank goes through a share of its own here, and {what} "
                f"in line {step.spot.line} waits for all: a rank with fewer items "
                "leaves the others waiting",
                at=line_of(loop.scope, loop.node),
                related=(
                    line_of(step.spot.scope, step.spot.node, "all have to call it"),
                ),
                severity=Severity.NOTE,
            )
