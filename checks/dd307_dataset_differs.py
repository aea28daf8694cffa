"""Ranks have different datasets, though each is to read its part of one.

What it is
----------
The dataset is made on each rank, and differs: random samples without a common seed, a
list of files in the order of a directory or of a set, which is another in each process.
A sampler, or a slice, then takes each rank's part of another dataset.

Why it matters
--------------
An index is another sample on each rank. Some samples are read by several ranks and
some by none, each of a set of its own; a resumed job sees others again.

Sick
----
Each rank has drawn samples of its own, and a sampler splits them as if they were one:

    rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)  read(samples=0+2+4+6,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=4+5+6)  read(samples=1+3+5+7,steps=2)@t.py:9

They have the same files in different orders, and each takes every second:

    rank 0 | wrap=ddp:a  held(names=f,rows=1+2+3,bags=9)
           | read(samples=0+2+4+6,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=f,rows=1+3+2,bags=9)
           | read(samples=1+3+5+7,steps=2)@t.py:9

Each has taken its half of the files already, out of a list in another order:

    rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)
           | read(samples=0-5,contents=11+14+15+12+19+20,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=4+2+6)
           | read(samples=0-5,contents=16+12+14+18+11+17,steps=2)@t.py:9

Well
----
Each has its own half of the files:

    rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)
           | read(samples=0-3,contents=11-14,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=4+5+6)
           | read(samples=0-3,contents=15-18,steps=2)@t.py:9

The dataset is one, and samples are altered at random when they are read:

    rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)
           | read(samples=0+2+4+6,contents=11-14,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=1+2+3)
           | read(samples=1+3+5+7,contents=15-18,steps=2)@t.py:9

Unknown
-------
A rank without a journal may have another dataset:

    rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)  read(samples=0+2+4+6,steps=2)@t.py:9
    rank 1 | ?

Remedy
------
Make it the same everywhere: sort lists of files, draw random samples from a generator
with a fixed seed (not one that depends on rank or time), or make it once, on rank 0,
and read it from there.
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
    likewise,
    locations,
    who_read,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import capital
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observed.data import DATASET, LOADER, SAMPLER, Read
from distdoctor.model.run import Run, named

CODE = "DD307"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops over datasets that differ among ranks."""
    for fault in faults(run, Why.DATASET):
        some = fault.meeting.passes
        # Where the lists hold the same, or in part, it is their order that differs.
        listed = fault.reordered or fault.tally.twice
        found = ("listing", "ordering") if listed else ("making", "seeding")
        ways = (*found, DATASET, SAMPLER, LOADER, LOOP)
        if not listed:  # random numbers may serve many purposes
            ways = (DATASET, *found, SAMPLER, LOADER, LOOP)
        yield Finding(
            message=_message(fault) + likewise(fault),
            exhibits=exhibits(fault),
            locations=locations(run, some, ways, fault.has_it),
            certainty=Certainty.PROVED if fault.sure else Certainty.LIKELY,
            details=details(fault),
        )
    require_whole(run)


def _message(fault: Fault) -> str:
    who = capital(named(fault.meeting.ranks))
    dataset = class_of(fault.meeting.passes[0])
    if fault.reordered:
        what = "the same samples, in a different order on each"
    elif fault.tally.twice:
        what = "datasets that overlap"
    else:
        what = "different samples, and read them as parts of one dataset"
    told = f"{who} hold {what}, in {dataset}, {epochs(fault)}: {who_read(fault)}"
    return told + (f", {how_often(fault.tally)}" if fault.tally.twice else "")
