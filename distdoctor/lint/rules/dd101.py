"""Ranks make different calls at the same place, on the two sides of a test of the rank.

Found
-----

    import torch.distributed as dist

    def share(tensor, names):
        if dist.get_rank() == 0:
            dist.broadcast_object_list(names, src=0)
        else:
            dist.all_reduce(tensor)

Left alone
----------
Both sides make the same call, or talk to one another by messages:

    import torch.distributed as dist

    def share(tensor, names):
        if dist.get_rank() == 0:
            dist.broadcast(tensor, src=0)
        else:
            tensor.zero_()
            dist.broadcast(tensor, src=0)
        if dist.get_rank() == 0:
            dist.send(tensor, dst=1)
        elif dist.get_rank() == 1:
            dist.recv(tensor, src=0)
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.communication import Deed
from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import told
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding

CODE = "DD101"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Calls in the place of which others make another one."""
    for parting in reading.partings:
        is_group = parting.step.communication.deed is Deed.GROUP
        if parting.how is How.OTHER and not is_group:
            yield told(parting, CODE)
