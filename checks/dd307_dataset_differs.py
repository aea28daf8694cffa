"""Ranks have different datasets, though each is to read its part of one.

What it is
----------
The dataset is made on each rank, and differs: random samples without a common seed, a
list of files in the order of a directory or of a set, which is another in each process.
A sampler, or a slice, then takes each rank's part of another dataset.

Likewise a vocabulary, or a map of labels, that numbers its names in the order of a set:
Python's hashes of texts differ from process to process, and so does that order. A name
is another number on each rank, and what its samples are made of differs.

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

Each numbers the same words in the order of a set:

    rank 0 | wrap=ddp:a  numbered(name=stoi,size=30,keys=5,numbers=6,first=cat=3+dog=1,hashed,fits)@t.py:9
    rank 1 | wrap=ddp:a  numbered(name=stoi,size=30,keys=5,numbers=7,first=cat=2+dog=4,hashed,fits)@t.py:9

The same, and no model has a dimension of that size (a warning: nobody may use it):

    rank 0 | wrap=ddp:a  numbered(name=columns,size=30,keys=5,numbers=6,hashed)@t.py:9
    rank 1 | wrap=ddp:a  numbered(name=columns,size=30,keys=5,numbers=7,hashed)@t.py:9

Well
----
All have the same numbers, or other names:

    rank 0 | wrap=ddp:a  read(samples=0+2,steps=2)  numbered(name=stoi,keys=5,numbers=6,hashed,fits)  numbered(name=own,keys=7,numbers=8,hashed,fits)
    rank 1 | wrap=ddp:a  read(samples=1+3,steps=2)  numbered(name=stoi,keys=5,numbers=6,hashed,fits)  numbered(name=own,keys=8,numbers=9,hashed,fits)

Each ranks the same names by what it has counted, or goes through them in its own order:

    rank 0 | wrap=ddp:a  read(samples=0+2,steps=2)  numbered(name=order,size=30,keys=5,numbers=6,fits)
    rank 1 | wrap=ddp:a  read(samples=1+3,steps=2)  numbered(name=order,size=30,keys=5,numbers=7,fits)

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
and read it from there. Number `sorted(words)`, not a set; `PYTHONHASHSEED=0` hides the
fault as long as everybody sets it.

Known problems
--------------
Contents are compared by fingerprints of batches and of tensors that the dataset holds:
files that are read lazily show only once they were read. That names are numbered in the
order of a set is told by that order, up to 200,000 names and in variables that were
alive at the second or sixth backward pass.

References
----------
- torchrec: the order of a set differs from process to process –
  https://github.com/meta-pytorch/torchrec/pull/4648
- Python: PYTHONHASHSEED –
  https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
- Python: os.listdir, in arbitrary order –
  https://docs.python.org/3/library/os.html#os.listdir
"""  # noqa: E501 - a drawing is as wide as what a rank did

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
    who_read,
)
from distdoctor.analysis.data.unequal_numbering import Renumbered, renumbered
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import DATASET, LOADER, SAMPLER, Read
from distdoctor.model.run import Run, named

CODE = "DD307"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops over datasets that differ among ranks."""
    for fault in faults(run, CoverageCause.DATASET):
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
    for one in renumbered(run):
        yield _renumbered(one)
    require_whole(run)


def _renumbered(one: Renumbered) -> Finding:
    numberings = list(one.by_rank.values())
    ranks = tuple(one.by_rank)
    apart = next(
        (
            f" ({mine} on rank {ranks[0]}, {theirs} on rank {ranks[n]})"
            for n, other in enumerate(numberings)
            for mine, theirs in zip(numberings[0].first, other.first, strict=False)
            if mine != theirs
        ),
        "",
    )
    use = "a model has as many rows" if one.fits else "a model may use them"
    return Finding(
        message=(
            f"{capital(named(ranks))} give the same {numberings[0].size:,} names other "
            f"numbers each, in {numberings[0].name}, in the order of a set{apart}: "
            f"{use}."
        ),
        exhibits=tuple(numberings[:_MOST_EXHIBITS]),
        locations=(
            *(
                Location(place, ranks, Role.CULPRIT, "numbers the names")
                for place in one.made
            ),
            *(
                Location(place, ranks, Role.CULPRIT, "a set, of another order on each")
                for place in one.sets
            ),
            *(
                Location(place, ranks, Role.PARTY, f"comes to {numberings[0].name}")
                for place in dict.fromkeys(each.place for each in numberings)
                if place is not None
            ),
        ),
        severity=SEVERITY if one.fits else Severity.WARNING,
        certainty=Certainty.PROVED if one.hashed else Certainty.LIKELY,
        details={"names": numberings[0].size, "variable": numberings[0].name},
    )


_MOST_EXHIBITS = 8


def _message(fault: CoverageFault) -> str:
    who = capital(named(fault.meeting.ranks))
    dataset = class_of(fault.meeting.passes[0])
    if fault.reordered:
        what = "the same samples, in a different order on each"
    elif fault.tally.twice:
        what = "datasets that overlap"
    else:
        what = "different samples, and read them as parts of one dataset"
    sentence = f"{who} hold {what}, in {dataset}, {epochs(fault)}: {who_read(fault)}"
    return sentence + (f", {how_often(fault.tally)}" if fault.tally.twice else "")
