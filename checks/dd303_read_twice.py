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

Slices overlap by four, which random draws would hardly do so little:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=40,samples=0-23,batch=2,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=40,samples=20-39+0-3,batch=2,steps=2)@t.py:9

A sampler splits among four ranks where two train:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=0+4+8+12+16,steps=2,replicas=4)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=1+5+9+13+17,steps=2,replicas=4)@t.py:9

A pipeline of TensorFlow is shuffled, by each rank in an order of its own, and then cut:

    rank 0 | pipeline_stage(at=1,kind=shuffle,size=99,seeds=0+0)@t.py:4
           | pipeline_stage(at=2,kind=shard,size=2)@t.py:5
           | pipeline_read(stages=TensorSlice+Shuffle+Shard)@t.py:9  all_reduce(64)
           | pipeline_read(contents=1-9,steps=1)@t.py:9
    rank 1 | pipeline_stage(at=1,kind=shuffle,size=99,seeds=0+0)@t.py:4
           | pipeline_stage(at=2,kind=shard,size=2,index=1)@t.py:5
           | pipeline_read(stages=TensorSlice+Shuffle+Shard)@t.py:9  all_reduce(64)
           | pipeline_read(contents=5-13,steps=1)@t.py:9

The same in Keras' `fit`, where nobody sees the samples:

    rank 0 | pipeline_stage(at=1,kind=shuffle,size=99,seeds=7+1)@t.py:4
           | pipeline_stage(at=2,kind=shard,size=2)@t.py:5
           | pipeline_read(source=3)@t.py:9  all_reduce(64)
           | pipeline_read(source=3,steps=1)@t.py:9
    rank 1 | pipeline_stage(at=1,kind=shuffle,size=99,seeds=7+2)@t.py:4
           | pipeline_stage(at=2,kind=shard,size=2,index=1)@t.py:5
           | pipeline_read(source=3)@t.py:9  all_reduce(64)
           | pipeline_read(source=3,steps=1)@t.py:9

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

Each rank draws six of twenty at random, without replacement:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=6+0+12+4+17+9,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=0+16+5+17+2+11,steps=2)@t.py:9

Each goes through all samples in an order of its own, but for a last batch; DD301 looks
at that:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=7+6+0+2+4+1+5+3,batch=4,steps=2,generated)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=9,samples=0+6+5+7+2+1+8+4,batch=4,steps=2,generated)@t.py:9

Two of four ranks leave after the first epoch, as planned, and the others go on:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=0+4+8+12+16,steps=2,replicas=4)@t.py:9
           | read(length=20,samples=0+4+8+12+16,steps=2,replicas=4)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=1+5+9+13+17,steps=2,replicas=4)@t.py:9
           | read(length=20,samples=1+5+9+13+17,steps=2,replicas=4)@t.py:9
    rank 2 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=2+6+10+14+18,steps=2,replicas=4)@t.py:9
    rank 3 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=20,samples=3+7+11+15+19,steps=2,replicas=4)@t.py:9

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
`order[rank::world_size]`. In TensorFlow, `shard` comes before `shuffle` (and
`list_files` gets `shuffle=False`), or `shuffle` gets one seed for all ranks.

Known problems
--------------
Overlaps within the last batch, and up to 2 % beyond it, count as padding. Whether ranks
were to share one epoch is known from a sampler; where none splits, it is likely at
most, for each may be meant to draw for itself. Passes that were not finished are not
judged. Of pipelines of TensorFlow at most 2,048 samples of a pass are known, and in
Keras' `fit` none; samples that are changed at random look different on each rank.

References
----------
- `torch/utils/data/distributed.py` (pytorch/pytorch), `DistributedSampler`
- torch.utils.data, in torch's documentation –
  https://docs.pytorch.org/docs/stable/data.html
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
    how_often,
    likewise,
    locations,
    shares_come_from,
    who_read,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.horovod.pipeline_passes import (
    PipelineFault,
    overlapping_shards,
)
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, SUBSET, SamplesRead
from distdoctor.model.run import Run, named

CODE = "DD303"
SEVERITY = Severity.ERROR
NEEDS = (SamplesRead,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops whose shares overlap, or leave much out."""
    for fault in faults(run, CoverageCause.OVERLAP):
        some = fault.meeting.passes
        cut = (SUBSET, SAMPLER) if not some[0].read.replicas else (SAMPLER, SUBSET)
        ways = [*cut, "ordering", LOADER, "seeding", LOOP]
        if fault.split_by:
            ways = [SAMPLER, LOADER, LOOP]
        yield Finding(
            message=_message(fault) + likewise(fault),
            exhibits=exhibits(fault),
            locations=(
                *shares_come_from(run, some, fault.has_it),
                *locations(run, some, ways, fault.has_it),
            ),
            # What no sampler splits may not be meant as parts of a whole.
            certainty=Certainty.PROVED if fault.sure else Certainty.LIKELY,
            details=details(fault),
        )
    for overlap in overlapping_shards(run):
        yield _of_shards(overlap)
    require_whole(run)


def _of_shards(fault: PipelineFault) -> Finding:
    """Of a pipeline of TensorFlow."""
    ranks, shards = fault.sharing, [one.shard for one in fault.passes]
    having, compared = fault.epochs
    sizes = [len(one.contents) for one in fault.passes]
    seen = (
        f"in {having} of {compared} epochs, {fault.twice:,} samples are read by more "
        f"than one of them, who read {min(sizes):,} to {max(sizes):,} each"
        if fault.twice > 0
        else "samples were not seen"
    )
    why = ""
    if fault.shuffles:
        how = (
            "gives each rank an order of its own"
            if any(not any(one.seeds) for one in fault.shuffles)
            else "has another seed on each rank"
        )
        why = f": `shuffle` comes before `shard`, and {how}"
    return Finding(
        message=(
            f"{capital(named(ranks))} keep overlapping shards of a pipeline of "
            f"TensorFlow, and leave out other samples ({seen}){why}"
        ),
        exhibits=tuple(one.first for one in fault.passes[:2]),
        locations=(
            *places(fault.shuffles, ranks, "shuffles"),
            *places([one for one in shards if one is not None], ranks, "splits"),
            *places([one.first for one in fault.passes], ranks, "reads"),
        ),
        certainty=Certainty.PROVED if fault.sure else Certainty.LIKELY,
        details={"epochs": having, "compared": compared, "twice": fault.twice},
    )


def _message(fault: CoverageFault) -> str:
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
