"""In one epoch, samples are read by several ranks, and others by none.

What it is
----------
Together, the ranks are to read each sample once in an epoch. Here their shares overlap:
each cuts its slice out of an order of its own (a permutation without a common seed), or
the slices are computed wrongly. Or a sampler splits for more ranks than there are.

Why it matters
--------------
What is read twice counts twice, and what is left out is never learnt, in each epoch a
random part of the data, or always the same.

Sick
----
Each rank cuts its half out of a permutation of its own:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=12,samples=6+0+2+4+1+9,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=12,samples=0+6+5+7+2+11,steps=2)@t.py:9

A sampler splits among four ranks where two train:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=0+4+8+12+16,steps=2,replicas=4)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=1+5+9+13+17,steps=2,replicas=4)@t.py:9

Well
----
The last batches are filled up with samples from the beginning:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=7,samples=6+2+4+0,batch=2,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=7,samples=1+5+3+6,batch=2,steps=2)@t.py:9

The end is left out, so that all have as many:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=6+2+4+0,batch=2,steps=2,replicas=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=1+5+3+7,batch=2,steps=2,replicas=2)@t.py:9

Samples are drawn with replacement:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=6+2+4+6+5+2,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=1+2+3+1+4+3,steps=2)@t.py:9

The job was ended in the middle of a pass:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=12,samples=6+0+2+4+1+9,steps=2,unfinished)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=12,samples=0+6+5+7+2+11,steps=2,unfinished)@t.py:9

Unknown
-------
A rank without a journal may have read what others did:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-3,steps=2)@t.py:9
    rank 1 | ?

Remedy
------
Use DistributedSampler, with its defaults for number and rank; or draw the permutation
from a generator that has the same seed on all ranks (plus the epoch), and cut it as
`order[rank::world_size]`.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.data.coverage import Fault, Why, faults
from distdoctor.analysis.data.readers import (
    LOOP,
    class_of,
    details,
    epochs,
    exhibits,
    how_often,
    locations,
    who_read,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import capital
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observed.data import LOADER, SAMPLER, SUBSET, Read
from distdoctor.model.run import Run, named

CODE = "DD303"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops whose shares overlap, or leave much out."""
    for fault in faults(run, Why.OVERLAP):
        some = fault.meeting.passes
        cut = (SUBSET, SAMPLER) if not some[0].read.replicas else (SAMPLER, SUBSET)
        ways = [*cut, "ordering", LOADER, "seeding", LOOP]
        if fault.split_by:
            ways = [SAMPLER, LOADER, LOOP]
        yield Finding(
            message=_message(fault),
            exhibits=exhibits(fault),
            locations=locations(run, some, ways, fault.sharing),
            details=details(fault),
        )
    require_whole(run)


def _message(fault: Fault) -> str:
    some = fault.meeting.passes
    tally = fault.tally
    dataset = class_of(some[0])
    if fault.split_by:
        return (
            f"The sampler of {dataset} splits it among {fault.split_by} ranks, and "
            f"{len(some)} train: {who_read(fault)}, and {tally.never:,} of "
            f"{some[0].read.length:,} samples are read by none"
        )
    return (
        f"{capital(named(fault.meeting.ranks))} read overlapping shares of {dataset} "
        f"{epochs(fault)}: {who_read(fault)}, {how_often(tally)}"
    )
