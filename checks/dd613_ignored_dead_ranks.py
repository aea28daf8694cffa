"""Ranks died, and the job ended with exit code 0.

What it is
----------
A program that starts its own ranks (`multiprocessing.Process`, `subprocess`, a shell
script with `&` and `wait`) has to look at how they ended. `Process.join()` returns all
the same, whatever became of the child, and its exit code is left in `exitcode`. Here a
rank died by an exception or a signal, and the command that started it left with 0.

Why it matters
--------------
The scheduler, the pipeline and the person who reads "done" take the job for finished.
The checkpoint is old, or of some ranks only, and the next stage trains on it.

If nothing had been trained by then, this is a warning: the job is green where it should
be red, and what else is wrong could not be seen.

Sick
----
Rank 1 fails after training, and its parent joins it without a look:

    rank 0 | start=2  all_reduce(4)  leave  exit=0@run.py:9
    rank 1 | start=2  all_reduce(4)  leave  fail=ValueError@t.py:7  exit=1@run.py:9
    the command left with 0

Rank 1 was killed:

    rank 0 | start=2  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  exit=137!
    the command left with 0

Well
----
The parent passes the failure on:

    rank 0 | start=2  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  fail=ValueError@t.py:7  exit=1
    the command left with 1

A rank was ended by its parent when the work was done:

    rank 0 | start=2  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  exit=143!!
    the command left with 0

It had left the job and was aborted on its way out (torch 2.13 does that now and then):

    rank 0 | start=2  all_reduce(4)  leave  exit=0
    rank 1 | start=2  all_reduce(4)  leave  exit=134!
    the command left with 0

Unknown
-------
A rank without a journal may have died, too:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?
    the command left with 0

Remedy
------
After `join()`, look at every `exitcode` and leave with a failure if one is not 0:
`sys.exit(any(p.exitcode for p in processes))`. `torch.multiprocessing.spawn` and
torchrun do that by themselves. Then repair the line that raised.

Known problems
--------------
Exit codes are those of processes that had joined the job or were started for it; a rank
that dies before the probes are there, or on another machine, is not seen. A parent that
notes the failure elsewhere (a file, a message) and leaves with 0 on purpose is told,
too.

References
----------
- Python: Process.exitcode –
  https://docs.python.org/3/library/multiprocessing.html#multiprocessing.Process.exitcode
- `torch/multiprocessing/spawn.py` (pytorch/pytorch), `spawn`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, failed
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.failures.deaths import own_failure
from distdoctor.model.events import (
    Call,
    Ended,
    Event,
    Failure,
    Left,
    Place,
    Started,
)
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD613"
SEVERITY = Severity.ERROR
NEEDS = (Started,)

_BY_SIGNAL = 128


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that died in a job that says it went well."""
    green = run.exit_code == 0 and not run.stopped and not run.simulated
    dead = {rank: end for rank in run.seen if (end := _death(run, rank)) is not None}
    if green and dead:
        own = [rank for rank in dead if own_failure(run, rank) is not None]
        trained = run.has(Call) or any(run.steps.values())
        yield Finding(
            message=_message(run, dead),
            exhibits=tuple(_exhibits(run, dead)),
            culprits=tuple(own or dead),
            victims=tuple(rank for rank in dead if own and rank not in own),
            locations=tuple(_locations(run, dead)),
            details={"exit_codes": {str(r): end.status for r, end in dead.items()}},
            severity=None if trained else Severity.WARNING,
        )
    require_whole(run)


def _death(run: Run, rank: int) -> Ended | None:
    """How a rank's process ended, if neither well nor by an order."""
    for end in run.of(Ended, rank)[-1:]:
        aborted = bool(end.status and end.status > _BY_SIGNAL and run.of(Left, rank))
        if end.status and not end.stopped and not aborted:
            return end
    return None


def _message(run: Run, dead: dict[int, Ended]) -> str:
    first = next(iter(dead))
    failure = _failure(run, first)
    status = dead[first].status
    assert status is not None
    if failure is not None:
        alike = [r for r in dead if _same(_failure(run, r), failure)]
        how = failed(alike, failure)
        if others := [rank for rank in dead if rank not in alike]:
            how += f", and {named(others)} died as well"
    elif status > _BY_SIGNAL:
        how = f"{capital(named([first]))} was killed by signal {status - _BY_SIGNAL}"
    else:
        how = f"{capital(named(dead))} left with exit code {status}"
    return f"{how}; the command that started them left with exit code 0 all the same."


def _failure(run: Run, rank: int) -> Failure | None:
    failures = [failure for failure in run.of(Failure, rank) if failure.fatal]
    return failures[0] if failures else None


def _same(a: Failure | None, b: Failure) -> bool:
    return a is not None and (a.error, a.place) == (b.error, b.place)


def _exhibits(run: Run, dead: dict[int, Ended]) -> Iterator[Event]:
    for rank, end in dead.items():
        failure = _failure(run, rank)
        if failure is not None:
            yield failure
        yield end


def _locations(run: Run, dead: dict[int, Ended]) -> Iterator[Location]:
    """Where ranks died, and the line of their parent that took no notice."""
    lines: dict[tuple[Place, str], list[int]] = {}
    for rank in dead:
        failure = _failure(run, rank)
        if failure is not None and failure.place is not None:
            key = (failure.place, f"raised {failure.error}")
            lines.setdefault(key, []).append(rank)
    for rank, end in dead.items():
        if end.place is not None:
            lines.setdefault((end.place, "waited for it here"), []).append(rank)
    for (place, remark), ranks in lines.items():
        yield Location(place, tuple(ranks), Role.CULPRIT, remark)
