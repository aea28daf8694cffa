"""All ranks train on the same samples.

What it is
----------
Ranks that average their gradients each read a part of the data of their own. Here they
read the same: the loader has no DistributedSampler, or each rank's sampler was given
the same rank, or fewer replicas than there are ranks.

Why it matters
--------------
Averaged gradients of the same samples are those of one rank: the job costs as much as
all its ranks and learns as much as one of them. Where each goes through all samples in
an order of its own, an epoch is as many epochs as there are ranks.

Sick
----
No sampler, and one seed for all:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=3+0+2+1,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=3+0+2+1,steps=2)@t.py:9

No sampler, and each rank in its own order; nothing is known of what the dataset holds,
but what was read is the same at each index:

    rank 0 | wrap=ddp:a  read(samples=3+0+2+1,contents=33+30+32+31,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  read(samples=0-3,contents=30-33,steps=2)@t.py:9

Ranks 0 and 1 share the work on their samples, and so do 2 and 3; but 2 has those of 0:

    group left | 0 1
    group right | 2 3
    rank 0 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)/left  within
           | read(samples=0-7,steps=4)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)/left  within
           | read(samples=0-7,steps=4)@t.py:9
    rank 2 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)/right  within
           | read(samples=0-7,steps=4)@t.py:9
    rank 3 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)/right  within
           | read(samples=0-7,steps=4)@t.py:9

Of a mesh, columns average their gradients; both rows read the same samples:

    rank 0 | wrap=ddp:a:0+2  held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9
    rank 1 | wrap=ddp:a:1+3  held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9
    rank 2 | wrap=ddp:a:0+2  held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9
    rank 3 | wrap=ddp:a:1+3  held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9

Batches that no DataLoader gives are known by what the model is called with:

    rank 0 | wrap=ddp:a  fed(step=2,inputs=5)@t.py:9  fed(step=3,inputs=6)@t.py:9  fed(step=4,inputs=7)@t.py:9
    rank 1 | wrap=ddp:a  fed(step=2,inputs=5)@t.py:9  fed(step=3,inputs=6)@t.py:9  fed(step=4,inputs=7)@t.py:9

Pipelines of TensorFlow give the same:

    rank 0 | pipeline_read@t.py:9  all_reduce(64)  pipeline_read(contents=1-9,steps=1)@t.py:9
    rank 1 | pipeline_read@t.py:9  all_reduce(64)  pipeline_read(contents=1-9,steps=1)@t.py:9

So do arrays that a function of TensorFlow trains on:

    rank 0 | fed(step=1,inputs=5)@t.py:9  all_reduce(64)  fed(step=2,inputs=6)@t.py:9  all_reduce(64)  variable_prints(step=2)
    rank 1 | fed(step=1,inputs=5)@t.py:9  all_reduce(64)  fed(step=2,inputs=6)@t.py:9  all_reduce(64)  variable_prints(step=2)

Well
----
Each has its part:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=6+0+2+4,steps=2)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=1+3+5+7,steps=2)@t.py:9

Each has files of its own, so an index is not the same sample on both:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-3,contents=10-13,steps=2)
    rank 1 | wrap=ddp:a  held(names=x,rows=8)  read(samples=0-3,contents=20-23,steps=2)

Each goes through all samples in an order of its own, by a generator that it was given:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=4,samples=3+0+2+1,steps=2,generated)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=4,samples=0+3+1+2,steps=2,generated)@t.py:9

Both evaluate on all there is:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-7)@t.py:20
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-7)@t.py:20

The model is tried with one batch over and over:

    rank 0 | wrap=ddp:a  read(samples=0-7)  fed(step=2,inputs=5)  fed(step=3,inputs=5)  fed(step=4,inputs=5)
    rank 1 | wrap=ddp:a  read(samples=0-7)  fed(step=2,inputs=5)  fed(step=3,inputs=5)  fed(step=4,inputs=5)

They average gradients, and exchange what each has of a sequence within the forward
pass, as context parallelism does:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)  within
           | read(samples=0-7,steps=4)@t.py:9
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  all_gather(32)  within
           | read(samples=0-7,steps=4)@t.py:9

They share a model in another way than by its gradients, as tensor parallelism does:

    rank 0 | held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9
    rank 1 | held(names=x,rows=7)  read(samples=0-7,steps=4)@t.py:9

Unknown
-------
A rank without a journal may be the one that reads what others do:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(samples=0-3,steps=2)@t.py:9
    rank 1 | ?

Remedy
------
Give the loader a `DistributedSampler(dataset)`, which takes number and rank from the
process group, and call its `set_epoch` before each epoch; the loader's own `shuffle`
goes. Give a sampler of another kind the job's world size and this rank. Who makes
batches by hand takes every `world_size`-th sample from `rank` on.

Known problems
--------------
Samples are known by their indices where the dataset is one, and else by fingerprints of
what a batch holds; random augmentation makes equal samples look different. Ranks that
share a sequence or a layer may well read the same, and what they exchange decides
whether it is told. It takes at least four samples, and without a DataLoader two looks.
Batches of other data that a step takes before its own count as read for training where
gradients are on, unless the model is in `eval()`, or they are one, as of a glance.
What Keras' `fit` reads in a job of TensorFlow is not seen.

References
----------
- `torch/utils/data/distributed.py` (pytorch/pytorch), `DistributedSampler`
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`, which
  does not shard the input
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.data.coverage import CoverageCause, faults
from distdoctor.analysis.data.fed_batches import Feeding, same_batches
from distdoctor.analysis.data.reading_findings import (
    LOOP,
    class_of,
    details,
    epochs,
    exhibits,
    likewise,
    locations,
    shares_come_from,
    who_read,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.horovod.pipeline_passes import (
    PipelineFault,
    SameInputs,
    same_inputs,
    same_samples,
)
from distdoctor.model.events import Wrapped
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, SamplesRead
from distdoctor.model.run import Run, named

CODE = "DD301"
SEVERITY = Severity.ERROR
NEEDS = (SamplesRead,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops in which several ranks train on the same samples."""
    by_line: dict[tuple[object, ...], list[Feeding]] = {}
    for feeding in same_batches(run):
        places = tuple(dict.fromkeys(one.place for one in feeding.fed))
        by_line.setdefault((places, feeding.everyone), []).append(feeding)
    for several in by_line.values():
        yield _of_batches(run, several)
    for fault in faults(run, CoverageCause.SAME):
        some = fault.meeting.passes
        everyone = len(fault.sharing) == len(some)
        shared_out = bool(some[0].read.replicas)
        first = (SAMPLER, LOADER) if shared_out else (LOADER, SAMPLER)
        ways = (*first, LOOP)
        order = "in the same order" if fault.in_order else "each in its own order"
        sharded = any(one.how == "fsdp" for one in run.of(Wrapped, some[0].rank))
        if not fault.in_order and all(one.read.generated for one in some):
            continue  # who gives each rank a generator wants an order for each
        # Ranks that share a sequence (context parallelism) read it together.
        wanted = sharded and not everyone
        sure = fault.sure and not sharded
        yield Finding(
            message=(
                f"{capital(named(fault.sharing))} train on the same samples of "
                f"{class_of(some[0])}, {order}, {epochs(fault)}: {who_read(fault)}"
                f"{likewise(fault)}"
            ),
            exhibits=exhibits(fault),
            culprits=() if everyone else fault.has_it,
            locations=(
                *shares_come_from(run, some, fault.has_it),
                *locations(run, some, ways, fault.has_it),
            ),
            certainty=Certainty.PROVED if sure else Certainty.LIKELY,
            details=details(fault),
            severity=Severity.WARNING if wanted else None,
        )
    for shared in same_samples(run):
        yield _of_pipelines(shared)
    for same in same_inputs(run):
        yield _of_inputs(same)
    require_whole(run)


def _of_pipelines(fault: PipelineFault) -> Finding:
    """Of pipelines of TensorFlow."""
    ranks = fault.sharing
    having, compared = fault.epochs
    everyone = len(ranks) == len(fault.passes)
    read = min(len(one.contents) for one in fault.passes)
    shards = [one.shard for one in fault.passes]
    kept = [shard for shard in shards if shard is not None]
    why = (
        f": all keep shard {kept[0].index} of {kept[0].size}"
        if len({(one.size, one.index) for one in kept}) == 1 < len(kept)
        else ""
    )
    return Finding(
        message=(
            f"{capital(named(ranks))} train on the same samples of a pipeline of "
            f"TensorFlow, in the same order, in {having} of {compared} epochs: the "
            f"first {read:,} are the same{why}"
        ),
        exhibits=tuple(one.first for one in fault.passes[:2]),
        culprits=() if everyone else ranks,
        locations=(
            *places(kept, ranks, "splits"),
            *places([one.first for one in fault.passes], ranks, "reads"),
        ),
        details={"epochs": having, "compared": compared},
    )


def _of_inputs(same: SameInputs) -> Finding:
    """Of arrays that ranks give to a function of TensorFlow."""
    steps = ", ".join(str(one.step) for one in same.fed)
    return Finding(
        message=(
            f"{capital(named(same.ranks))} train on the same batches: at each step "
            f"that was looked at ({steps}) the training function was called with the "
            "same inputs"
        ),
        exhibits=same.fed[:1],
        locations=tuple(places(same.fed, same.ranks, "gives the batch")),
        details={"steps": [one.step for one in same.fed]},
    )


def _of_batches(run: Run, several: Sequence[Feeding]) -> Finding:
    feeding = several[0]
    who = tuple(sorted({rank for one in several for rank in one.sharing}))
    culprits = () if feeding.everyone else who
    role = Role.PARTY if feeding.everyone else Role.CULPRIT
    others = [named(one.sharing) for one in several[1:]]
    more = f"; likewise {', '.join(others)}" if others else ""
    places = dict.fromkeys(one.place for one in feeding.fed if one.place is not None)
    # With FSDP, ranks may share a sequence, or the work on it.
    sharded = any(one.how == "fsdp" for one in run.of(Wrapped, feeding.sharing[0]))
    steps = ", ".join(map(str, feeding.steps))
    return Finding(
        message=(
            f"{capital(named(feeding.sharing))} train on the same batches: at each "
            f"step that was looked at ({steps}) the model was called with the same "
            f"inputs{more}"
        ),
        exhibits=feeding.fed[:1],
        culprits=culprits,
        locations=tuple(
            Location(place, who, role, "gives the model its batch") for place in places
        ),
        certainty=Certainty.LIKELY if sharded else Certainty.PROVED,
        details={"steps": list(feeding.steps)},
        severity=Severity.WARNING if sharded else None,
    )
