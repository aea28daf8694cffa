"""A process group is created by some ranks only.

Found
-----

    import torch.distributed as dist

    def make_group(members):
        if dist.get_rank() in members:
            return dist.new_group(members)
        return None

Each half of the ranks creates its own:

    import torch.distributed as dist

    def halves(rank, world_size):
        half = world_size // 2
        if rank < half:
            return dist.new_group(list(range(half)))
        return dist.new_group(list(range(half, world_size)))

Left alone
----------
All create all groups, and each keeps its own; or torch is told that members alone do:

    import torch.distributed as dist

    def make_groups(world_size, members):
        own = None
        for first in range(0, world_size, 2):
            ranks = [first, first + 1]
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                own = group
        if dist.get_rank() in members:
            own = dist.new_group(members, use_local_synchronization=True)
        return own
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.lint.communication import Deed
from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import told
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding

CODE = "DD109"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Groups that others do not create."""
    seen: set[tuple[int, int]] = set()
    for parting in reading.partings:
        step, other = parting.step, parting.other
        if step.communication.deed is not Deed.GROUP:
            continue
        if parting.how is How.OTHER and other is not None:
            pair = sorted((step.spot.key, other.spot.key))
            if (pair[0], pair[1]) in seen:
                continue  # told from the other side
            seen.add((pair[0], pair[1]))
        if parting.how in {How.GROUP, How.OTHER}:
            yield told(parting, CODE)
