"""Several ranks write the same file at the same time.

What it is
----------
Each rank downloads, unpacks, preprocesses or logs to the same name, and opens the file
for writing; nothing lets them do so one after the other, or only one of them at all.

Why it matters
--------------
Opening the file empties it under the others' hands. Who reads it meanwhile gets half a
file, or one made of pieces of two: an error one day in ten, or samples that are wrong.
On many ranks the same server and disk do the same work as often.

Sick
----
Each rank makes the file, and then reads it:

    rank 0 | start=2  written(path=/d/a.npz)@t.py:4  read_back(path=/d/a.npz)@t.py:9
    rank 1 | start=2  written(path=/d/a.npz)@t.py:4  read_back(path=/d/a.npz)@t.py:9

Each rank makes the file unless it is there, and one that finds it does not wait:

    rank 0 | start=2  written(path=/d/a.npz)@t.py:4  read_back(path=/d/a.npz)@t.py:9
    rank 1 | start=2  .                              read_back(path=/d/a.npz)@t.py:9

Each rank writes its log to one name (a warning):

    rank 0 | barrier  written(path=/d/log.txt)@t.py:4  exit=0
    rank 1 | barrier  written(path=/d/log.txt)@t.py:4  exit=0

Well
----
Rank 0 makes it, and the others wait:

    rank 0 | written(path=/d/a.npz)@t.py:4  barrier  read_back(path=/d/a.npz)@t.py:9
    rank 1 | .                              barrier  read_back(path=/d/a.npz)@t.py:9

A rank looks again and again until the file is whole:

    rank 0 | written(path=/d/a.npz)@t.py:4
    rank 1 | read_back(path=/d/a.npz,waited)@t.py:9

They write one after the other:

    rank 0 | written(path=/d/a.txt)@t.py:4  barrier  exit=0
    rank 1 | barrier                        written(path=/d/a.txt)@t.py:4  exit=0

A message hands the turn on:

    rank 0 | written(path=/d/a.txt)@t.py:4  send(1,peer=1)  exit=0
    rank 1 | recv(1,peer=0)  written(path=/d/a.txt)@t.py:4  exit=0

They take a lock:

    rank 0 | written(path=/d/a.txt,locked)@t.py:4  exit=0
    rank 1 | written(path=/d/a.txt,locked)@t.py:4  exit=0

Unknown
-------
A rank without a journal may write it as well:

    rank 0 | written(path=/d/a.npz)@t.py:4
    rank 1 | ?

Remedy
------
Let one rank do it (`if rank == 0:`, of each machine where the disk is not shared), call
`dist.barrier()` behind it on all ranks, and only then read. Else give each rank a name
of its own, or write to a name of its own and rename.

Known problems
--------------
Only files that Python opens are seen, and not those a library writes in C++ or a
program that the rank starts. Ranks on machines with disks of their own write other
files under one name. Messages and keys of a store since the last meeting of all count
as an order, though they may be about something else.

References
----------
- pytorch tutorials: all ranks download at once, and the data are corrupt –
  https://github.com/pytorch/tutorials/issues/3065
- vision: ImageNet() races where several processes unpack –
  https://github.com/pytorch/vision/issues/8707
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.checkpoints.write_clashes import Clash, clashes
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.checkpoints import Written
from distdoctor.model.run import Run, named

CODE = "DD312"
SEVERITY = Severity.ERROR
NEEDS = (Written,)


def examine(run: Run) -> Iterator[Finding]:
    """Files written by several ranks, one finding for each line that writes."""
    by_line: dict[tuple[Place | None, bool], list[Clash]] = {}
    for clash in clashes(run):
        key = (clash.written[0].place, bool(clash.read))
        by_line.setdefault(key, []).append(clash)
    for several in by_line.values():
        yield _finding(run, several)
    require_whole(run)


def _finding(run: Run, several: list[Clash]) -> Finding:
    first = several[0]
    ranks = tuple(one.rank for one in first.written)
    more = f" and {len(several) - 1} other files" if len(several) > 1 else ""
    readers = sorted({one.rank for one in first.read})
    then = "nobody reads it in this run"
    if first.read:
        then = f"{named(readers)} read{'s' if len(readers) == 1 else ''} it"
    places: dict[tuple[Place, Role, str], list[int]] = {}
    for event, role, remark in (
        *((one, Role.CULPRIT, "writes it") for one in first.written),
        *((one, Role.VICTIM, "reads it") for one in first.read),
    ):
        if event.place is not None:
            places.setdefault((event.place, role, remark), []).append(event.rank)
    exhibits: tuple[Event, ...] = (*first.written[:_MOST_SHOWN], *first.read[:1])
    message = (
        f"{capital(named(ranks))} write {first.path}{more} anew at the same time, and "
        f"{then}"
    )
    if len(ranks) == 1:
        reading = "reads" if len(readers) == 1 else "read"
        message = (
            f"{capital(named(ranks))} writes {first.path}{more} anew, and nothing made "
            f"{named(readers)} wait, which {reading} it and may find the half of it"
        )
    return Finding(
        message=message,
        exhibits=exhibits,
        culprits=() if len(ranks) in {1, len(run.seen)} else ranks,
        locations=tuple(
            Location(place, tuple(dict.fromkeys(who)), role, remark)
            for (place, role, remark), who in places.items()
        ),
        certainty=Certainty.PROVED
        if first.read and len(ranks) > 1
        else Certainty.LIKELY,
        details={"paths": [clash.path for clash in several[:_MOST_SHOWN]]},
        severity=None if first.read else Severity.WARNING,
    )


_MOST_SHOWN = 8
