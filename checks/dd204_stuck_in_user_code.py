"""A rank is stuck in its own code while the others wait for it.

What it is
----------
All others wait in a call that needs this rank, and the rank neither calls nor ends. Its
stack was looked at again and again: always the same functions, no data read or written,
no batch fetched, no call made.

Or all others have ended or left, and the rank's process does not end: each of its
threads waits, without a limit of time, for a lock, a queue or the end of another one. A
writer's thread that was not told to stop does that, as Python waits for it at the end.

Why it matters
--------------
An endless retry, a lock taken twice, a queue nobody fills: the job burns its allocation
until the timeout, which then blames the ranks that waited.

Sick
----
Rank 1 draws samples until one fits, and none ever does:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  busy=38@sample.py:21

Rank 0 has left, and its process waits for a thread that nobody told to stop:

    rank 0 | all_reduce(4)@t.py:7  leave@t.py:9  stranded=36@save.py:21
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  exit=0

So does that of each rank, and none had left:

    rank 0 | all_reduce(4)@t.py:7  stranded=34@save.py:21
    rank 1 | all_reduce(4)@t.py:7  stranded=34@save.py:21

Well
----
Rank 0 writes a checkpoint for a while:

    rank 0 | all_reduce(4)@t.py:7  busy=6@save.py:3
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...

Rank 0 waits for its thread to write the last checkpoint, and ends:

    rank 0 | all_reduce(4)@t.py:7  leave@t.py:9  stranded=12@save.py:21  exit=0
    rank 1 | all_reduce(4)@t.py:7  leave@t.py:9  exit=0

Rank 0 evaluates for long, and comes back:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  exit=0

Unknown
-------
A rank without a journal may be the one that is stuck:

    rank 0 | start=2  all_reduce(4)...
    rank 1 | ?

Remedy
------
Give the loop an end: bound its retries, and raise when they are used up. For a lock,
find who holds it (`py-spy dump --pid`). A thread that waits for work has to be told
that there is no more (`queue.put(None)`) before it is joined, and before the program
ends. If the rank really computes for long, let the others wait outside of a collective,
or raise the timeout for that phase.

Known problems
--------------
That the threads of a process wait for each other is seen by py-spy alone, and not of
one that takes a lock in a line of your own.

Of a job that nobody watched, one stack decides if it waits outside of all calls while
others wait for its rank, or if their time was up; at work, it may only be late.

It takes 20 seconds in one place while others wait. A loop in native code that holds the
interpreter's lock shows no movement either, and long work of that kind may be told; a
rank that is stuck in turns at several places is not. In dumps of flight recorders
nobody looked at stacks: there a rank is told that made no call while others waited for
it until their call timed out, called elsewhere for a minute, or went far ahead. It may
as well have hung while it set up a communicator, which is not recorded.

References
----------
- torch: Debugging hangs with Flight Recorder –
  https://docs.pytorch.org/tutorials/intermediate/debug_hangs_with_flight_recorder.html
- py-spy, a sampling profiler – https://github.com/benfred/py-spy
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, on_group, s
from distdoctor.analysis.deadlock.circular_waits import StuckRank
from distdoctor.analysis.deadlock.ranks_behind import SilentRanks
from distdoctor.analysis.deadlock.stacks_elsewhere import StuckElsewhere
from distdoctor.analysis.deadlock.stranded_processes import stranded
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Busy, Call, Place
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD204"
SEVERITY = Severity.ERROR
NEEDS = (Call,)

STUCK_AFTER_S = 20.0
"""Shorter than this, people do save, load and evaluate on one rank; our choice."""


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that were seen in one place for long while others waited for them."""
    if (found := stranded(run, STUCK_AFTER_S)) is not None:
        yield found
    for finding in findings(run, Cause.BUSY):
        seen = [event for event in finding.exhibits if isinstance(event, Busy)]
        if run.calls_from != "run" and not [one for one in seen if one.looks > 1]:
            yield finding  # told by the records of others, or by them and a stack
            continue
        if seen and seen[0].seconds >= STUCK_AFTER_S:
            yield finding
    require_whole(run)


@sentence_of(Cause.BUSY)
def _sentence(stuck: StuckRank | SilentRanks | StuckElsewhere) -> str:
    if isinstance(stuck, StuckElsewhere):
        return _at_one_look(stuck)
    if isinstance(stuck, SilentRanks):
        behind = stuck.behind
        return (
            f"{capital(named(behind.ranks))} made no further call, while "
            f"{named(behind.waiting)} wait{s(behind.waiting)} in "
            f"{on_group(behind.call)}: {stuck.why}. "
            f"{_standing(stuck.stands)}"
        )
    seen = stuck.seen
    function = seen.place.function or "its own code"
    doubt = "" if seen.doing else "; a very long computation would look the same"
    return (
        f"Rank {seen.rank} has been in {function} ({seen.place}) for "
        f"{seen.seconds:.0f} s, {stuck.doing}, while {named(stuck.waiting)} "
        f"wait{s(stuck.waiting)} for it in {stuck.op}{doubt}."
    )


def _standing(at: Place | None) -> str:
    """Where a rank stands, if anybody has looked."""
    if at is None:
        return (
            "Where it stands its record does not tell: in its own code, or setting up "
            "a communicator."
        )
    return f"Its stack shows it in {at.function or 'its own code'} ({at})."


def _at_one_look(stuck: StuckElsewhere) -> str:
    """What a stack of the rank and the records of the others tell together."""
    behind, seen = stuck.behind, stuck.seen
    function = seen.place.function or "its own code"
    doing = f", {seen.doing}" if seen.doing else ""
    call = behind.call
    number = f", call {behind.ordinal} on {call.group}" if behind.ordinal else ""
    until = " until their time was up" if stuck.overdue else ""
    return (
        f"{capital(named(behind.ranks))} stood in {function} ({seen.place}){doing}, "
        f"and {named(behind.waiting)} wait{s(behind.waiting)} for it in "
        f"{call.op}{number}{until}."
    )
