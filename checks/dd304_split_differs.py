"""Ranks split the data into training and validation, each in its own way.

What it is
----------
Each rank draws its own split: `random_split` without a generator, a shuffle without a
common seed, the order of a set or of a directory. On each rank the two sides are apart,
and yet one rank trains on what another evaluates on.

Why it matters
--------------
Gradients are averaged, so the model has been trained on most of what it is evaluated
on. The validation says how well it remembers.

Sick
----
Samples 6 and 7 are for validation on rank 0, and rank 1 trains on them:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-5,steps=3)@t.py:9
           | read(number=1,samples=6+7)@t.py:20
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=2-7,steps=3)@t.py:9
           | read(number=1,samples=0+1)@t.py:20

Well
----
All have the same split, and each its share of either side:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0+2+4,steps=3)@t.py:9
           | read(number=1,samples=6)@t.py:20
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=1+3+5,steps=3)@t.py:9
           | read(number=1,samples=7)@t.py:20

They evaluate on samples that they train on, to see how that goes:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0+2+4+6,steps=3)@t.py:9
           | read(number=1,samples=0-7)@t.py:20
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=1+3+5+7,steps=3)@t.py:9
           | read(number=1,samples=0-7)@t.py:20

Unknown
-------
A rank without a journal may train on what others evaluate on:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-5,steps=3)
           | read(number=1,samples=6+7)
    rank 1 | ?

Remedy
------
Split with a generator that has the same seed on all ranks
(`random_split(data, sizes, generator=torch.Generator().manual_seed(0))`), from a
sorted list, or once, on rank 0, and send the indices to the others.

Known problems
--------------
It takes a pass of evaluation on each rank in the same run; a split whose second side is
never read shows nothing. Where samples are told by their contents, at least a tenth
must have leaked, and duplicates in the data set may look like a leak.

References
----------
- Lightning: a random split on each rank trains on validation data –
  https://github.com/Lightning-AI/pytorch-lightning/issues/7728
- OpenTau: the same fault, found and mended –
  https://github.com/TensorAuto/OpenTau/pull/498
- `torch/utils/data/dataset.py` (pytorch/pytorch), `random_split`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.data.coverage import CoverageCause, CoverageFault, faults
from distdoctor.analysis.data.reading_findings import (
    LOOP,
    class_of,
    details,
    epochs,
    exhibits,
    likewise,
    locations,
)
from distdoctor.analysis.data.split_leaks import leaks
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, SUBSET, Read
from distdoctor.model.run import Run, named

CODE = "DD304"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Samples that one rank evaluates on and another trains on."""
    for leak in leaks(run):
        both = (*leak.evaluated, *leak.trained)
        yield Finding(
            message=(
                f"{capital(named(leak.ranks))} split {class_of(both[0])} each in its "
                f"own way: of {leak.of:,} samples that they evaluate on, "
                f"{leak.leaked:,} are trained on by another rank, and none by the rank "
                "itself"
            ),
            exhibits=tuple(one.read for one in both[:_SHOWN]),
            locations=locations(run, both, _WAYS, ()),
            details={"evaluated": leak.of, "leaked": leak.leaked},
        )
    for fault in faults(run, CoverageCause.SPLIT):
        yield _of_parts(run, fault)
    require_whole(run)


def _of_parts(run: Run, fault: CoverageFault) -> Finding:
    some = fault.meeting.passes
    return Finding(
        message=(
            f"{capital(named(fault.meeting.ranks))} split {class_of(some[0])} each in "
            f"its own way: a sampler gives them unlike positions {epochs(fault)}, and "
            f"still {fault.tally.twice:,} samples are read by more than one of them, "
            f"and {max(fault.tally.never, 0):,} by none; what they keep for "
            f"evaluation differs as well{likewise(fault)}"
        ),
        exhibits=exhibits(fault),
        locations=locations(run, some, _WAYS, fault.has_it),
        certainty=Certainty.LIKELY,
        details=details(fault),
    )


_WAYS = (SUBSET, "ordering", SAMPLER, "seeding", "listing", LOADER, LOOP)

_SHOWN = 8
