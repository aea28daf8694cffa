"""An evaluation's figure weighs its samples unequally, or leaves out most.

What it is
----------
The ranks share an evaluation. Either each takes the average of its own share, and these
averages are averaged in turn, though the shares are of different size; or nothing is
put together at all, and one rank tells what is true of its own share. Or averages are
added up, a loss in training as well, and their sum is told as if it were one. Or what
all ranks have found is added up, and divided by the count of one. Or it is added up in
half precision, which has no digits for that: in bfloat16, 256 and 1 make 256.

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

No loader was seen, but fractions of 19 and of 12 are told as 0.5855 and 0.6228:

    rank 0 | wrap=ddp:a  all_reduce(-)@t.py:12  added_up(values=.42105263)@t.py:12
           | shown(numbers=.5855,decimals=4,labels=accuracy)@t.py:13
           | all_reduce(-)@t.py:12  added_up(values=.57894737)@t.py:12
           | shown(numbers=.6228,decimals=4,labels=accuracy)@t.py:13
           | all_reduce(-)@t.py:12  added_up(values=.63157895)@t.py:12  leave
    rank 1 | wrap=ddp:a  all_reduce(-)@t.py:12  added_up(values=.75)@t.py:12
           | all_reduce(-)@t.py:12  added_up(values=.66666667)@t.py:12
           | all_reduce(-)@t.py:12  added_up(values=.58333333)@t.py:12  leave

Rank 0 tells a figure, and the others' shares are no part of it:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27)@t.py:9  leave

It evaluates alone, by a sampler that gives it half of the samples:

    rank 0 | wrap=ddp:a  read(length=8,samples=0+2+4+6,replicas=2)@t.py:9
           | reported(passes=0,fraction)@t.py:12  barrier  leave
    rank 1 | wrap=ddp:a  barrier  leave

Two ranks' losses are added up, and 2.5 is told as their average:

    rank 0 | wrap=ddp:a  all_reduce(-)@t.py:12
           | added_up(values=1.0,loss=1.0,losses=4)@t.py:12
           | shown(numbers=2.5,decimals=4,labels=average-loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  all_reduce(-)@t.py:12
           | added_up(values=1.5,loss=1.5,losses=4)@t.py:12  leave

Losses of all ranks are added up, and divided by the batches of one:

    rank 0 | wrap=ddp:a  all_reduce(-)@t.py:12
           | added_up(values=10.0,loss=1.0,losses=10)@t.py:12
           | shown(numbers=2.1,decimals=4,labels=loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  all_reduce(-)@t.py:12
           | added_up(values=11.0,loss=1.1,losses=10)@t.py:12  leave

6 and 5 of 8 samples are right on two ranks, and the sum is divided by 8:

    rank 0 | wrap=ddp:a  read(samples=0-7,contents=1-8,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=6.0)@t.py:12
           | added_up(values=6.0)@t.py:12
           | shown(numbers=1.375,decimals=3,labels=accuracy)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=8-15,contents=21-28,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=5.0)@t.py:12
           | added_up(values=5.0)@t.py:12  leave

The losses of an evaluation, which are as large as those of the training before it:

    rank 0 | wrap=ddp:a  read(samples=0-7,contents=1-8,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=8.2)@t.py:12
           | added_up(values=8.2,loss=1.0,losses=10)@t.py:12
           | shown(numbers=2.0125,decimals=4,labels=loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=8-15,contents=21-28,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=7.9)@t.py:12
           | added_up(values=7.9,loss=1.1,losses=10)@t.py:12  leave

A sum in bfloat16 has stopped growing:

    rank 0 | wrap=ddp:a  read(samples=0-7)@t.py:9
           | tallied(name=total,additions=520,value=1024,step=2.3,still=9,wrong)@t.py:11
           | all_reduce(-)@t.py:12  added_up(values=1024.0)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=8-15)@t.py:9
           | tallied(name=total,additions=520,value=1024,step=2.3,still=9,wrong)@t.py:11
           | all_reduce(-)@t.py:12  added_up(values=1024.0)@t.py:12  leave

Samples that are counted in it are more than it says, or will be:

    rank 0 | wrap=ddp:a  read(samples=0-7)@t.py:9
           | tallied(name=seen,additions=90,value=664,step=7,exact=630,wrong)@t.py:10
           | tallied(name=right,additions=90,value=512,step=5)@t.py:11
           | all_reduce(-)@t.py:12  added_up(values=672.0)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=8-15)@t.py:9
           | all_reduce(-)@t.py:12  added_up(values=630.0)@t.py:12  leave

The same of accuracies, which can not be above 1:

    rank 0 | wrap=ddp:a  all_reduce(-)@t.py:12  added_up(values=0.75)@t.py:12
           | shown(numbers=1.375,decimals=3,labels=accuracy)@t.py:13  leave
    rank 1 | wrap=ddp:a  all_reduce(-)@t.py:12  added_up(values=0.625)@t.py:12  leave

Nobody has told the others yet what is no whole number any more:

    rank 0 | wrap=ddp:a  read(samples=0-7)@t.py:9
           | tallied(name=total,additions=110,value=258,step=2.3)@t.py:11  leave
    rank 1 | wrap=ddp:a  read(samples=8-15)@t.py:9
           | tallied(name=total,additions=110,value=258,step=2.3)@t.py:11  leave

300 and 140 samples are counted, and added up in bfloat16:

    rank 0 | wrap=ddp:a  read(samples=0-299,contents=1-300,batch=16)@t.py:9
           | all_reduce(2:bfloat16)@t.py:12
           | contributed(passes=0,values=250.0+300.0)@t.py:12
           | added_up(values=250.0+300.0)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=300-439,contents=301-440,batch=16)@t.py:9
           | all_reduce(2:bfloat16)@t.py:12
           | contributed(passes=0,values=90.0+140.0)@t.py:12
           | added_up(values=90.0+140.0)@t.py:12  leave

Well
----
Sums of losses are added up in bfloat16, and few samples:

    rank 0 | wrap=ddp:a  read(samples=0-299,contents=1-300,batch=16)@t.py:9
           | all_reduce(-:bfloat16)@t.py:12  contributed(passes=0,values=416.0)@t.py:12
           | added_up(values=416.0)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=300-439,contents=301-440,batch=16)@t.py:9
           | all_reduce(-:bfloat16)@t.py:12  contributed(passes=0,values=202.0)@t.py:12
           | added_up(values=202.0)@t.py:12  leave

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

Fractions of 19 and of 12 are weighted, before they are told:

    rank 0 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12  added_up(values=.42105263)@t.py:12
           | shown(numbers=.5484,decimals=4,labels=accuracy)@t.py:13
           | all_reduce(-)@t.py:12  added_up(values=.57894737)@t.py:12
           | shown(numbers=.6129,decimals=4,labels=accuracy)@t.py:13
           | all_reduce(-)@t.py:12  added_up(values=.63157895)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12  added_up(values=.75)@t.py:12
           | all_reduce(-)@t.py:12  added_up(values=.66666667)@t.py:12
           | all_reduce(-)@t.py:12  added_up(values=.58333333)@t.py:12  leave

Each rank tells its own figure:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave
    rank 1 | wrap=ddp:a  read(samples=0-6,contents=21-27)@t.py:9
           | reported(passes=0,fraction)@t.py:12  leave

Rank 0 evaluates all of it:

    rank 0 | wrap=ddp:a  read(length=8,samples=0-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12  barrier  leave
    rank 1 | wrap=ddp:a  barrier  leave

The sum of losses is divided by the number of ranks before it is told:

    rank 0 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12
           | added_up(values=1.0,loss=1.0,losses=4)@t.py:12
           | shown(numbers=1.25,decimals=4,labels=average-loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12
           | added_up(values=1.5,loss=1.5,losses=4)@t.py:12  leave

Losses are divided by the number of ranks before, or by the batches of all after:

    rank 0 | wrap=ddp:a  read(samples=0-6)@t.py:9  all_reduce(-)@t.py:12
           | added_up(values=5.0,loss=1.0,losses=10)@t.py:12
           | shown(numbers=1.05,decimals=4,labels=loss)@t.py:13
           | all_reduce(-)@t.py:14  added_up(values=10.0,loss=1.0,losses=10)@t.py:14
           | shown(numbers=1.05,decimals=4,labels=loss)@t.py:15  leave
    rank 1 | wrap=ddp:a  read(samples=0-6)@t.py:9  all_reduce(-)@t.py:12
           | added_up(values=5.5,loss=1.1,losses=10)@t.py:12
           | all_reduce(-)@t.py:14  added_up(values=11.0,loss=1.1,losses=10)@t.py:14
           | leave

So are the losses of an evaluation, for all that is known of them:

    rank 0 | wrap=ddp:a  read(samples=0-7,contents=1-8,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=4.1)@t.py:12
           | added_up(values=4.1,loss=1.0,losses=10)@t.py:12
           | shown(numbers=1.0063,decimals=4,labels=loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=8-15,contents=21-28,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=3.95)@t.py:12
           | added_up(values=3.95,loss=1.1,losses=10)@t.py:12  leave

Each rank evaluates all samples, or its part of each, and all of that is added up:

    rank 0 | wrap=ddp:a  read(samples=0-7,contents=1-8,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=6.0)@t.py:12
           | added_up(values=6.0)@t.py:12
           | shown(numbers=1.375,decimals=3,labels=accuracy)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=0-7,contents=1-8,batch=4)@t.py:9
           | all_reduce(-)@t.py:12  contributed(passes=0,values=5.0)@t.py:12
           | added_up(values=5.0)@t.py:12  leave

Each rank's loss is divided before they are added up:

    rank 0 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12
           | added_up(values=0.5,loss=1.0,losses=4)@t.py:12
           | shown(numbers=1.25,decimals=4,labels=average-loss)@t.py:13  leave
    rank 1 | wrap=ddp:a  read(samples=0-6)@t.py:9
           | all_reduce(-)@t.py:12
           | added_up(values=0.75,loss=1.5,losses=4)@t.py:12  leave

Unknown
-------
Part of what a rank did was not seen:

    rank 0 | wrap=ddp:a  read(samples=0-6,contents=1-7)@t.py:9
           | reported(passes=0,fraction)@t.py:12
    rank 1 | ?

Remedy
------
Add up sums and counts over the ranks, `all_reduce(torch.tensor([right, count]))`, and
divide once, at the end; averages of equal shares can be averaged (`op=ReduceOp.AVG`, or
divide their sum by the number of ranks). Let every rank take part in that before one of
them tells the figure. Count in whole numbers, and add up in float32 or float64.

Known problems
--------------
A mean of local means goes unseen where the shards are made by hand, no DataLoader gives
them, and the digits that are printed do not tell their sizes. What the figures mean is
read from numbers, words beside them and the source, so nearly all is likely and names
what would excuse it. Losses on a GPU are not read, for that would wait for it.

References
----------
- Lightning: the mean of a metric over batches is not the metric over all –
  https://github.com/Lightning-AI/pytorch-lightning/issues/4493
- Lightning: metrics of ranks with unequal batches –
  https://github.com/Lightning-AI/pytorch-lightning/issues/21838
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.data.reading_findings import LOOP, class_of, locations
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.metrics.averaged_averages import Averaged, averaged
from distdoctor.analysis.metrics.coarse_sums import Coarse, Rounded, coarse, rounded
from distdoctor.analysis.metrics.own_counts import OwnCount, own_counts
from distdoctor.analysis.metrics.partial_results import Partial, partial
from distdoctor.analysis.metrics.undivided_sums import (
    UndividedSum,
    WrittenFigure,
    undivided,
)
from distdoctor.analysis.metrics.unequal_fractions import UnequalFractions, uneven
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, Read
from distdoctor.model.run import Run, named

CODE = "DD311"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Figures of evaluations that are not those of all samples."""
    lines = set()
    for one in averaged(run):
        lines.add(one.calls[0].place)
        yield _averaged(run, one)
    for each in uneven(run):
        if each.calls[0].place not in lines:
            yield _uneven(each)
    for case in undivided(run):
        yield _undivided(case)
    for own in own_counts(run):
        yield _own_count(own)
    for tally in coarse(run):
        yield _coarse(run, tally)
    for few in rounded(run):
        yield _rounded(few)
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


def _uneven(one: UnequalFractions) -> Finding:
    call, shown = one.calls[0], one.shown
    fractions = " and ".join(
        f"{each:,}ths" for each in sorted(set(one.counts))[:_SHOWN]
    )
    return Finding(
        message=(
            f"{call.op} brings together fractions that ranks have found each in its "
            f"own share, with the same weight: by their digits they are {fractions}, "
            f"so that the shares are of different size. {one.plain:.4g} is told, and "
            f"{one.weighted:.4g} is the average over all samples of such shares, "
            "unless each share is to count as much as the others"
        ),
        exhibits=(shown, *one.given[:_SHOWN]),
        locations=_lines(one, "averages averages", "tells the average"),
        certainty=Certainty.LIKELY,
        details={
            "samples": list(one.counts[:_MOST]),
            "told": one.plain,
            "average": one.weighted,
        },
    )


def _undivided(case: UndividedSum) -> Finding:
    call, shown, world = case.calls[0], case.shown, len(case.calls)
    what = "average" if case.what == "loss" and case.as_average else case.what
    return Finding(
        message=(
            f"{call.op} adds up the {case.what} of each of {world} ranks, and "
            f"{named((shown.rank,))} tells the sum, {case.total:.6g}, as the {what}: "
            f"their average is {case.total / world:.6g}"
        ),
        exhibits=(shown, *case.given[:_SHOWN]),
        locations=_lines(case, "adds up averages", "tells the sum"),
        certainty=Certainty.LIKELY,
        severity=None if case.as_average else Severity.WARNING,
        details={
            "told": case.total,
            "average": case.total / world,
            "values": list(case.averages[:_MOST]),
        },
    )


def _own_count(one: OwnCount) -> Finding:
    call, shown = one.calls[0], one.shown
    right = one.total / sum(one.counts) * one.scale
    return Finding(
        message=(
            f"{call.op} adds up what {len(one.calls)} ranks have found, to "
            f"{one.total:.6g}, and {named((one.rank,))} divides that by its own "
            f"{one.mine:,} {one.unit} alone: {one.total / one.mine * one.scale:.6g} is "
            f"told as the {one.what}, and over the {sum(one.counts):,} of all ranks it "
            f"is {right:.6g}"
        )
        + ("" if one.sure else ", unless the ranks divide before they add up"),
        exhibits=(shown, *one.given[:_SHOWN]),
        locations=_lines(one, "adds up over all ranks", "tells it by its own count"),
        certainty=Certainty.LIKELY,
        severity=None if one.sure else Severity.WARNING,
        details={
            "told": one.total / one.mine * one.scale,
            "average": right,
            one.unit: list(one.counts[:_MOST]),
        },
    )


def _coarse(run: Run, one: Coarse) -> Finding:
    first = one.tallies[0]
    if first.still:
        what = (
            f"the last {first.still} times that {first.step:.4g} was to be added, "
            f"nothing changed: {first.value:.6g} + {first.step:.4g} is "
            f"{first.value:.6g} in {first.dtype}"
        )
    elif first.wrong:
        what = (
            f"{first.step:.4g} is added each time, which comes to {first.exact:.6g}, "
            f"and {first.value:.6g} is there"
        )
    else:
        what = (
            f"it is {first.value:.6g}, and of the {first.step:.4g} that is added each "
            "time a large part is rounded away; later on, all of it is"
        )
    places = [one.place for one in one.tallies[:1] if one.place is not None]
    again = [call.place for call in one.calls[:1] if call.place is not None]
    return Finding(
        message=(
            f"{capital(named(one.ranks))} add{s(one.ranks)} up {first.name} in "
            f"{first.dtype}; after {first.additions} additions, {what}"
        ),
        exhibits=one.tallies[:_SHOWN],
        culprits=() if len(one.ranks) == len(run.seen) else one.ranks,
        locations=(
            *(Location(at, one.ranks, Role.CULPRIT, "adds to it") for at in places),
            *(Location(at, one.ranks, Role.PARTY, "sums it up") for at in again),
        ),
        certainty=Certainty.PROVED if first.wrong else Certainty.LIKELY,
        severity=None if one.wrong else Severity.WARNING,
        details={
            "name": first.name,
            "value": first.value,
            "exact": first.exact,
            "step": first.step,
            "additions": first.additions,
        },
    )


def _rounded(few: Rounded) -> Finding:
    call = few.one.calls[0]
    assert call.place is not None
    place = Location(call.place, few.one.ranks, Role.CULPRIT, "adds up counts")
    return Finding(
        message=(
            f"{call.op} adds up numbers of samples in {few.dtype}, of "
            f"{min(few.counts):,} to {max(few.counts):,} on each of {len(few.counts)} "
            f"ranks: of what they come to, {few.dtype} has only each "
            f"{few.apart}th whole number"
        ),
        exhibits=few.one.given[:_SHOWN],
        locations=(place,),
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING,
        details={"samples": list(few.counts[:_MOST]), "apart": few.apart},
    )


def _lines(figure: WrittenFigure, does: str, remark: str) -> tuple[Location, ...]:
    """Where the ranks' figures are brought together, and where the result is told."""
    call, shown = figure.calls[0], figure.shown
    assert call.place is not None
    ranks = tuple(each.rank for each in figure.calls)
    brought = Location(call.place, ranks, Role.CULPRIT, does)
    if shown.place is None:
        return (brought,)
    return brought, Location(shown.place, (shown.rank,), Role.PARTY, remark)


def _partial(run: Run, part: Partial) -> Finding:
    places = dict.fromkeys(
        shown.place for shown in part.reported if shown.place is not None
    )
    telling = [
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
        exhibits=(*(one.read for one in part.passes[:_SHOWN]), *part.reported[:_SHOWN]),
        locations=(*telling, *locations(run, part.passes, _WAYS, part.tellers)),
        certainty=Certainty.LIKELY,
        details={"told": part.covered, "samples": part.of},
    )


_WAYS = (LOOP, SAMPLER, LOADER)

_SHOWN = 4

_MOST = 1024
