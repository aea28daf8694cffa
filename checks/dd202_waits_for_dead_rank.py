"""A rank died, and the others wait for it.

What it is
----------
A rank raised an exception of its own, was killed by a signal (out of memory, a crash in
native code), or ended itself with a failing status (`sys.exit(1)`, `os._exit(1)`),
while others still need it. The first exception is the cause; the errors of the others
("connection closed by peer") are consequences.

Why it matters
--------------
The log shows the victims first and most: their timeouts and tracebacks bury the one
line that matters. An exception may also be held up by a `finally:` that communicates,
and is then never printed at all.

Sick
----
Rank 1 meets a broken record:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  fail=KeyError@data.py:3  exit=1
    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...

Rank 1 was killed, and its peers lost their connections:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7^  fail=RuntimeError^  exit=1
    rank 1 | all_reduce(4)@t.py:7  exit=137!

The exception waits in a `finally:` for a barrier:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
    rank 1 | all_reduce(4)@t.py:7  fail=ValueError@data.py:3~  barrier@t.py:20~...
    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!

Rank 1 gives up by itself:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  quit=os._exit:1@watch.py:5  exit=1

NCCL's RAS, asked in a running job, cannot reach rank 2, and the others answer:

    rank 0 | communicator_look(comm=c0ffee,size=3,answered=2)
           | ailing_member(comm=c0ffee,member=2,known=2,host=10.0.0.3,pid=71,state=dead)
    rank 1 |
    rank 2 |

Well
----
All ranks find the result too poor, and say so by their exit status:

    rank 0 | all_reduce(4)  quit=sys.exit:1@t.py:30  exit=1
    rank 1 | all_reduce(4)  quit=sys.exit:1@t.py:30  exit=1

A rank that had left the job is killed on its way out (torch 2.13 does that now and
then):

    rank 0 | all_reduce(4)  leave  exit=0
    rank 1 | all_reduce(4)  leave  exit=134!

An exception was handled, and the job went on:

    rank 0 | all_reduce(4)  all_reduce(4)          leave  exit=0
    rank 1 | all_reduce(4)  fail=ValueError~  all_reduce(4)~  leave  exit=0

NCCL's RAS sees the job take its communicators down, and a rank is gone first:

    rank 0 | all_reduce(4)  communicator_look(comm=c0ffee,size=3,answered=2,ending)
           | ailing_member(comm=c0ffee,member=2,known=2,state=dead)  leave  exit=0
    rank 1 | all_reduce(4)  leave  exit=0
    rank 2 | all_reduce(4)  leave  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Repair the line that raised. If a rank may meet bad data, catch the error where it
arises and let all ranks decide together what to do; never communicate in a `finally:`
or an `except:` that only one rank can reach. If the kernel killed it for want of
memory, give the job more, or start fewer ranks and loader workers on the machine. If
only NCCL's RAS tells of it, look at its output, and at `dmesg` and the network of its
host.

Known problems
--------------
NCCL's RAS (`distdoctor autopsy --ras`) tells who cannot be reached, not why: it is
likely dead, or its host is cut off. Who does not answer yet, who has let go of a
communicator, and who is gone where most are, is told as a warning.

The first exception that was no peer's fault counts as the cause. Where a rank died
because a file was missing that another rank was to write, the death is told at the line
that opened it; that the writing was late (DD409) is known of checkpoints only. Why the
kernel killed a process is told only where the machine shows it. In dumps of flight
recorders a rank is told that left none while all others did and wait for it: that its
file was lost instead cannot be seen.

References
----------
- NCCL: RAS –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
- torch elastic: Error Propagation, the first failure is the root cause –
  https://docs.pytorch.org/docs/stable/elastic/errors.html
- `torch/distributed/elastic/multiprocessing/errors/__init__.py` (pytorch/pytorch),
  `ChildFailedError`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import (
    Cause,
    Divergence,
    capital,
    failed,
    on_group,
    s,
    waits,
)
from distdoctor.analysis.communicators.lost_members import lost_members
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.recorded_slips import LostRanks
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.failures.deaths import Death, DeathOnTheWay
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call, Ended, Failure, Quit
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD202"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that died and left others waiting."""
    died: set[int] = set()
    for found in findings(run, Cause.DIED, cure=_cure):
        died |= {*found.culprits}
        yield found
    yield from lost_members(run, died)
    require_whole(run)


def _cure(divergence: Divergence) -> str:
    """What to do about this death, or where nobody can tell yet what it was of."""
    death = divergence.facts
    raised = death.by if isinstance(death, Death) else divergence.cause
    if isinstance(raised, Failure):
        return _cure_of_exception(raised)
    if not isinstance(death, Death) or not death.unexplained:
        return ""
    return (
        f"Look at the stderr of {named(death.ranks)}, where a process that aborts "
        "itself says why, and give that file to `distdoctor autopsy`, too. Where there "
        "is none, run the job under `distdoctor check`."
    )


def _cure_of_exception(raised: Failure) -> str:
    at = f" at {raised.place}" if raised.place is not None else ""
    return (
        f"Mend what raised {raised.error}{at}. If a rank may meet such data, catch the "
        "error where it arises and let all ranks decide together what to do; never "
        "communicate in a `finally:` or an `except:` that only one rank can reach."
    )


@sentence_of(Cause.DIED)
def _sentence(death: Death | DeathOnTheWay | LostRanks) -> str:
    if isinstance(death, LostRanks):
        call, waiting = death.call, death.waiting
        return (
            f"{capital(named(death.ranks))} left no dump, and {named(waiting)} "
            f"{waits(waiting)} in vain: in {on_group(call)}. A process that has died "
            "or left writes none; one that only hangs would have."
        )
    if isinstance(death, DeathOnTheWay):
        call, others = death.call, death.others
        return (
            f"{failed(death.ranks, death.failure)}; on its way up the exception led "
            f"into {call.op} at {call.place}, while {named(others)} {waits(others)} in "
            f"{death.op} ({death.where})."
        )
    missed = death.missed
    came_of_it = f"{named(missed.ranks)} could not go on without it"
    if missed.op:
        wait = f"wait{s(missed.ranks)}"
        came_of_it = (
            f"{named(missed.ranks)} {wait} for it in {missed.op} ({missed.where})"
        )
    unexplained = _UNEXPLAINED if death.unexplained else ""
    return f"{_how(death)}; {came_of_it}.{unexplained}"


def _how(death: Death) -> str:
    """Who died, and of what."""
    match death.by:
        case Failure() as failure:
            return failed(death.ranks, failure)
        case Quit(status=status, place=None):
            how = f"left with exit status {status}"
        case Quit(how=how, status=status, place=place):
            return f"{capital(named(death.ranks))} ended by {how}({status}) at {place}"
        case Ended(status=None):
            how = "ended without a word"
        case Ended(status=status) if status == _SIGABRT_AS_SHELL:
            how = "aborted itself (signal 6)"
        case Ended(status=status):
            assert status is not None
            how = f"was killed by signal {status - 128}"
    if death.starved and death.by.status in {None, _SIGKILL_AS_SHELL}:
        how += f" ({death.starved})"
    return f"{capital(named(death.ranks))} {how}"


_SIGABRT_AS_SHELL, _SIGKILL_AS_SHELL = 128 + 6, 128 + 9

_UNEXPLAINED = (
    " Why is not in what was read: its stderr tells. It may be a fault of its native "
    "code, or gloo's answer to calls of the ranks that do not match (DD102, DD108)."
)
