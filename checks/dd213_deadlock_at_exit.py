"""A rank never ends, because what it frees at the end waits for the interpreter.

What it is
----------
After `destroy_process_group()` the rank frees a model whose C++ side still holds the
process group. Its destructor keeps the interpreter's lock and joins a thread of the
backend, and that thread needs the lock to let go of the last tensor: neither can go on.
Seen with torch 2.13 and gloo: the destructor of DistributedDataParallel's reducer.

Why it matters
--------------
All is computed, saved and printed, and the job does not end. On a cluster it holds its
machines until the time limit, and counts as failed.

Sick
----
Rank 1 has left and is stuck at the end of its function:

    rank 0 | all_reduce(4)@t.py:7  leave@t.py:9  exit=0
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  dead=16@t.py:12

Both are:

    rank 0 | all_reduce(4)@t.py:7  leave@t.py:9  dead=16
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  dead=18@t.py:12

Well
----
A rank takes its time to save, which lets go of the interpreter's lock:

    rank 0 | all_reduce(4)@t.py:7  leave@t.py:9  exit=0
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  .

The lock is held for long in the middle of the job, as by a slow extension:

    rank 0 | all_reduce(4)@t.py:7  dead=16@t.py:8  leave@t.py:9  exit=0
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  exit=0

The ranks have left and joined again, and one keeps the lock for a while at that:

    rank 0 | leave@t.py:9  init_process_group@t.py:11  dead=16  all_reduce(4)  .
    rank 1 | leave@t.py:9  init_process_group@t.py:11           all_reduce(4)  .

Unknown
-------
A rank without a journal may be the one that hangs:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Let the model go before the group: `del model, optimizer`, and only then
`dist.destroy_process_group()`. What was computed is not affected.

Known problems
--------------
That a destructor joins a thread is not seen: the rank had left, did nothing for long
and held the interpreter's lock, which native code that computes at the end may do as
well. The deadlock strikes in some runs only, and a run without it says nothing.

References
----------
- pytorch: destructors that block while they hold the GIL –
  https://github.com/pytorch/pytorch/issues/56297
- pytorch: Release GIL in PG destructor – https://github.com/pytorch/pytorch/pull/154976
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Call, Dead, Ended, Left, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD213"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that left the job and then held the interpreter's lock for ever."""
    left = {rank: one for rank in run.seen if (one := _left(run, rank)) is not None}
    dead = {
        rank: run.of(Dead, rank)[-1]
        for rank in left
        if run.of(Dead, rank) and not run.of(Ended, rank)
    }
    if dead:
        first = min(dead)
        after = f" at {left[first].place}" if left[first].place else ""
        at = f" at {dead[first].place}" if dead[first].place else ""
        everybody = len(dead) == len(run.seen)
        where: dict[tuple[Place, str], list[int]] = {}
        for rank in dead:
            for place, remark in (
                (left[rank].place, "left the job here"),
                (dead[rank].place, "does not come out of here"),
            ):
                if place is not None:
                    where.setdefault((place, remark), []).append(rank)
        role = Role.PARTY if everybody else Role.CULPRIT
        yield Finding(
            message=f"After leaving the job{after}, {named(dead)} did not end: for "
            f"{dead[first].seconds:.0f} s the interpreter's lock was held{at} and "
            "nothing was done, as when a destructor joins a thread that waits for "
            "that lock.",
            exhibits=tuple(dead.values()),
            culprits=() if everybody else tuple(dead),
            victims=tuple(dead) if everybody else (),
            locations=tuple(
                Location(place, tuple(ranks), role, remark)
                for (place, remark), ranks in where.items()
            ),
            certainty=Certainty.LIKELY,
        )
    require_whole(run)


def _left(run: Run, rank: int) -> Left | None:
    """Where a rank left the job for good: it made no call after that."""
    made = len(run.rows_of(rank))
    behind = [
        event for position, event in run.told(Left, rank=rank) if position == made
    ]
    return behind[-1] if behind else None
