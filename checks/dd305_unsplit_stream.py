"""An iterable dataset gives the same samples on several ranks, or in several workers.

What it is
----------
A sampler splits what has indices. An `IterableDataset` has none: it has to leave out
what is for other ranks and for other workers of its own loader, by itself. Here it does
not, or it does so for the workers alone.

Why it matters
--------------
All ranks train on the same samples, and the job learns as much as one of them. With
workers, each sample comes as often as a rank has workers.

Sick
----
Both ranks read the same stream:

    rank 0 | wrap=ddp:a  read(contents=11-16,steps=3,iterable)@t.py:9
    rank 1 | wrap=ddp:a  read(contents=11-16,steps=3,iterable)@t.py:9

So do both workers of each rank, whose ranks have their own:

    rank 0 | wrap=ddp:a  read(contents=11-14+11-14,steps=3,iterable,workers=2)@t.py:9
    rank 1 | wrap=ddp:a  read(contents=21-24+21-24,steps=3,iterable,workers=2)@t.py:9

Well
----
Each rank reads every second sample:

    rank 0 | wrap=ddp:a  read(contents=11+13+15+17,steps=3,iterable)@t.py:9
    rank 1 | wrap=ddp:a  read(contents=12+14+16+18,steps=3,iterable)@t.py:9

Each draws what it likes, and three of eight come on both, as chance will have it:

    rank 0 | wrap=ddp:a  read(contents=1-8,steps=3,iterable)@t.py:9
    rank 1 | wrap=ddp:a  read(contents=11+3+12+13+7+14+1+15,steps=3,iterable)@t.py:9

Samples are few and come again and again, on one rank as on two:

    rank 0 | wrap=ddp:a  read(contents=1+2+1+3+4+2+1+4+3,steps=3,iterable)@t.py:9
    rank 1 | wrap=ddp:a  read(contents=2+2+1+4+4+3+1+3+1,steps=3,iterable)@t.py:9

Unknown
-------
A rank without a journal may read the same stream:

    rank 0 | wrap=ddp:a  read(contents=11+13+15+17,steps=3,iterable)@t.py:9
    rank 1 | ?

Remedy
------
In `__iter__`, count workers over all ranks: with
`info = get_worker_info()`, worker `rank * info.num_workers + info.id` of
`world_size * info.num_workers` takes every so manieth sample, file or shard.

Known problems
--------------
A stream has no indices, so samples are compared by fingerprints: data that repeat
themselves, or few different values, say little and pass. Only what was read is known; a
stream that parts after the steps of a shortened run counts as the same.

References
----------
- datasets: an IterableDataset is read twice with DDP –
  https://github.com/huggingface/datasets/issues/5360
- pytorch: iterable data sets in distributed training –
  https://github.com/pytorch/pytorch/issues/48702
- `torch/utils/data/dataset.py` (pytorch/pytorch), `IterableDataset`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital
from distdoctor.analysis.data.coverage import CoverageCause, CoverageFault, faults
from distdoctor.analysis.data.passes import LoaderPass
from distdoctor.analysis.data.reading_findings import (
    LOOP,
    class_of,
    details,
    epochs,
    exhibits,
    likewise,
    locations,
    who_read,
)
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.leading_lines import with_callers
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import DATASET, ITERATED, LOADER, Read
from distdoctor.model.run import Run, named

CODE = "DD305"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops over streams that several ranks, or workers, go through."""
    for fault in faults(run, CoverageCause.STREAM):
        some = fault.meeting.passes
        everyone = len(fault.sharing) == len(some)
        yield Finding(
            message=_message(fault) + likewise(fault),
            exhibits=exhibits(fault),
            culprits=() if everyone else fault.has_it,
            locations=(
                *(with_callers(run, [*_asks(run, some)]) if fault.by_worker else ()),
                *locations(run, some, (ITERATED, DATASET, LOADER, LOOP), fault.has_it),
            ),
            certainty=Certainty.PROVED if fault.sure else Certainty.LIKELY,
            details=details(fault),
        )
    require_whole(run)


def _asks(run: Run, some: Sequence[LoaderPass]) -> Iterator[Location]:
    """Lines that ask which worker it is; the stream is not split by the answer."""
    uses = program_of(run).calls.get("get_worker_info", [])
    ranks = tuple(one.rank for one in some)
    for use in uses if len(uses) <= _MOST_ASKING else ():
        place = Place(use.function.file, use.line, use.function.name)
        remark = "asks for the worker, by which nothing is split"
        yield Location(place, ranks, Role.PARTY, remark)


_MOST_ASKING = 2  # with more of them a list says nothing


def _message(fault: CoverageFault) -> str:
    some = fault.meeting.passes
    workers = some[0].read.workers
    dataset = class_of(some[0])
    if not fault.by_rank:
        return (
            f"The iterable {dataset} is not split by worker: each sample comes "
            f"{workers} times on each rank, once from each worker, {epochs(fault)} "
            f"({who_read(fault)} different ones)"
        )
    also = ", nor by worker," if fault.by_worker else ""
    return (
        f"The iterable {dataset} is not split by rank{also}: "
        f"{capital(named(fault.sharing))} read the same samples {epochs(fault)} "
        f"({who_read(fault)}, {fault.tally.twice:,} of them by more than one)"
    )
