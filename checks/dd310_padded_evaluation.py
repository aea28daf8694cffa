"""An evaluation counts some samples twice.

What it is
----------
DistributedSampler gives each rank as many samples as any other, and so repeats some
where they do not divide evenly. In training that hardly matters. Here the ranks'
results are added up, and samples that came twice count twice.

Why it matters
--------------
The figure is that of another set of samples, and changes with the number of ranks: two
runs of one model differ, and the best checkpoint may be another.

Sick
----
Five samples, and both ranks have three:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0+2+4)@t.py:9
           | all_reduce(2)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=1+3+0)@t.py:9
           | all_reduce(2)@t.py:12  leave

Well
----
The shares are uneven, and none is filled up:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0+2+4)@t.py:9
           | all_reduce(2)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=1+3)@t.py:9
           | all_reduce(2)@t.py:12  leave

The outcome of each sample is gathered, and what came twice can be left out:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0+2+4)@t.py:9
           | all_gather(3)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=1+3+0)@t.py:9
           | all_gather(3)@t.py:12  leave

What came twice was masked: the number that is added up is that of the samples.

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0+2+4)@t.py:9
           | all_reduce(25)@t.py:12  contributed(passes=0,total=3)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=1+3+0)@t.py:9
           | all_reduce(25)@t.py:12  contributed(passes=0,total=2)@t.py:12  leave

Each evaluates all of it:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0-4)@t.py:9
           | all_reduce(2)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0-4)@t.py:9
           | all_reduce(2)@t.py:12  leave

Training goes on:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=5,samples=0+2+4,steps=3)@t.py:9  all_reduce(2)@t.py:12  leave
    rank 1 | wrap=ddp:a  held(names=x,rows=7)
           | read(length=5,samples=1+3+0,steps=3)@t.py:9  all_reduce(2)@t.py:12  leave

Unknown
-------
A rank without a journal may have evaluated what others did:

    rank 0 | wrap=ddp:a  held(names=x,rows=7)  read(length=5,samples=0+2+4)@t.py:9
           | all_reduce(2)@t.py:12
    rank 1 | ?

Remedy
------
Give each rank `Subset(data, range(rank, len(data), world_size))` for evaluation, and
add up sums and counts; or gather the outcome of each sample, put it in order, and cut
it at `len(data)`. Evaluate without DDP's wrapper, for the ranks' shares are uneven.

Known problems
--------------
Rows that are cut at the sampler's padded size and not at the data set's, after they
were gathered, go unseen, for a gathering counts as one that can leave out what came
twice. Where the number that is added up is not seen, the finding says "unless they are
left out". An evaluation in epochs that were shortened is not judged whole.

References
----------
- pytorch: wrong validation accuracy by DistributedSampler –
  https://github.com/pytorch/pytorch/issues/25162
- vision: evaluation of the references counts images twice –
  https://github.com/pytorch/vision/issues/4559
- `torch/utils/data/distributed.py` (pytorch/pytorch), `DistributedSampler`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.data.reading_findings import LOOP, class_of, locations
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.metrics.padded_evaluations import padded
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, Read
from distdoctor.model.run import Run

CODE = "DD310"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Evaluations whose results count samples twice."""
    for one in padded(run):
        some = one.meeting.passes
        call = one.combined[0]
        assert call.place is not None
        ranks = one.meeting.ranks
        added = Location(call.place, ranks, Role.CULPRIT, "adds up the results")
        yield Finding(
            message=(
                f"The evaluation of {class_of(some[0])} reads "
                f"{one.evaluated - one.repeated:,} samples as {one.evaluated:,}: "
                f"{one.repeated:,} come twice, to fill up the {len(some)} ranks' "
                f"shares, and {call.op} adds up the results"
                + ("" if one.counted else ", unless they are left out")
            ),
            exhibits=(*(each.read for each in some[:_SHOWN]), *one.combined[:_SHOWN]),
            locations=(*locations(run, some, (SAMPLER, LOADER, LOOP), ranks), added),
            certainty=Certainty.PROVED if one.counted else Certainty.LIKELY,
            details={"evaluated": one.evaluated, "twice": one.repeated},
        )
    require_whole(run)


_SHOWN = 4
