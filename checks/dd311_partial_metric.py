"""An evaluation's figure weighs its samples unequally, or leaves out most.

What it is
----------
The ranks share an evaluation. Either each takes the average of its own share, and these
averages are averaged in turn, though the shares are of different size; or nothing is
put together at all, and one rank tells what is true of its own share.

Why it matters
--------------
The figure is not that of the data set. It changes with the number of ranks and with
which samples lie where; of rank 0's share alone it scatters more, too. The best
checkpoint, early stopping and schedules that follow it are led astray.

Sick
----
9 of 12 are right on rank 0, 3 of 7 on rank 1; that is 12 of 19, and not 0.589:

    rank 0 | wrap=ddp:a  read(samples=0-11,contents=1-12,batch=16)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=0.75)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=0.428571433)@t.py:12
           | leave

The same, by two averages of losses that the operation itself averages:

    rank 0 | wrap=ddp:a  read(samples=0-11,contents=1-12,batch=16)@t.py:9
           | all_reduce(-,op=avg)@t.py:12
           | contributed(passes=0,values=1.3213)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_reduce(-,op=avg)@t.py:12
           | contributed(passes=0,values=1.1177)@t.py:12  leave

Rank 0 tells a figure, and the others' shares are no part of it:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27)@t.py:9  leave

It evaluates alone, by a sampler that gives it half of the samples:

    rank 0 | wrap=ddp:a  read(length=8,samples=0+2+4+6,replicas=2)@t.py:9
           | reported(passes=0,fraction)@t.py:12  barrier  leave
    rank 1 | wrap=ddp:a  barrier  leave

Well
----
Each gives how many are right, and how many there are:

    rank 0 | wrap=ddp:a  read(samples=0-11,contents=1-12,batch=16)@t.py:9
           | all_reduce(2)@t.py:12  contributed(passes=0,values=9.0+12.0)@t.py:12
           | reported(passes=0,fraction)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_reduce(2)@t.py:12  contributed(passes=0,values=3.0+7.0)@t.py:12
           | leave

The shares are equal:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7,batch=16)@t.py:9
           | all_reduce(-)@t.py:12
           | contributed(passes=0,values=0.571428597)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_reduce(-)@t.py:12
           | contributed(passes=0,values=0.428571433)@t.py:12  leave

The average of each is weighted by its part of all samples:

    rank 0 | wrap=ddp:a  read(samples=0-11,contents=1-12,batch=16)@t.py:9
           | all_reduce(-)@t.py:12
           | contributed(passes=0,values=0.473684222)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_reduce(-)@t.py:12
           | contributed(passes=0,values=0.157894731)@t.py:12  leave

Averages are gathered along with the numbers of samples:

    rank 0 | wrap=ddp:a  read(samples=0-11,contents=1-12,batch=16)@t.py:9
           | all_gather(2)@t.py:12  contributed(passes=0,values=0.75+12.0)@t.py:12
           | leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27,batch=16)@t.py:9
           | all_gather(2)@t.py:12
           | contributed(passes=0,values=0.428571433+7.0)@t.py:12  leave

Each rank tells its own figure:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave

Rank 0 evaluates all of it:

    rank 0 | wrap=ddp:a  read(length=8,samples=0-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  barrier  leave
    rank 1 | wrap=ddp:a  barrier  leave

Unknown
-------
Part of what a rank did was not seen:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12
    rank 1 | ?

Remedy
------
Add up sums and counts over the ranks, `all_reduce(torch.tensor([right, count]))`, and
divide once, at the end. Let every rank take part in that before one of them tells the
figure.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.data.metrics import Averaged, averaged
from distdoctor.analysis.data.parts import Partial, partial
from distdoctor.analysis.data.readers import LOOP, class_of, locations
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observed.data import LOADER, SAMPLER, Read
from distdoctor.model.run import Run, named

CODE = "DD311"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Figures of evaluations that are not those of all samples."""
    for one in averaged(run):
        yield _averaged(run, one)
    for part in partial(run):
        yield _partial(run, part)
    require_whole(run)


def _averaged(run: Run, one: Averaged) -> Finding:
    some, call = one.meeting.passes, one.calls[0]
    assert call.place is not None
    least, most = min(one.counts), max(one.counts)
    unless = ", unless they are weighted later" if one.gathered else ""
    again = Location(call.place, one.meeting.ranks, Role.CULPRIT, "averages averages")
    return Finding(
        message=(
            f"{call.op} brings together averages of the ranks' shares of "
            f"{class_of(some[0])}, which have {least:,} to {most:,} samples and get "
            f"the same weight: that makes {one.plain:.6g}, and {one.weighted:.6g} is "
            f"the average over all {sum(one.counts):,} samples{unless}"
        ),
        exhibits=(*(each.read for each in some[:_SHOWN]), *one.given[:_SHOWN]),
        locations=(again, *locations(run, some, _WAYS, one.meeting.ranks)),
        certainty=Certainty.LIKELY,
        details={
            "samples": list(one.counts[:_MOST]),
            "told": one.plain,
            "average": one.weighted,
        },
    )


def _partial(run: Run, part: Partial) -> Finding:
    places = dict.fromkeys(told.place for told in part.told if told.place is not None)
    tells = [
        Location(place, part.tellers, Role.CULPRIT, "tells a figure of its own share")
        for place in places
    ]
    return Finding(
        message=(
            f"Only {named(part.tellers)} tells figures after the evaluation of "
            f"{class_of(part.passes[0])}, and they are about {part.covered:,} of its "
            f"{part.of:,} samples, {part.covered / part.of:.0%}: nothing is put "
            "together with what other ranks evaluate, unless the figures are others"
        ),
        exhibits=(*(one.read for one in part.passes[:_SHOWN]), *part.told[:_SHOWN]),
        locations=(*tells, *locations(run, part.passes, _WAYS, part.tellers)),
        certainty=Certainty.LIKELY,
        details={"told": part.covered, "samples": part.of},
    )


_WAYS = (LOOP, SAMPLER, LOADER)

_SHOWN = 4

_MOST = 1024
