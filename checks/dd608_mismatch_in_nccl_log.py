"""The calls of ranks that NCCL's log shows do not match.

What it is
----------
With NCCL_DEBUG_SUBSYS=COLL each rank prints each call that it enqueues: the operation,
the count, the datatype, the reduce op and the root. The calls of each communicator are
lined up by their order. The first one that not all ranks made alike is told: another
argument, a call that is missing or one too many, another order. If the job failed, so
is a rank that is behind.

Why it matters
--------------
NCCL does not compare: calls that do not match hang, end in network errors, or give
wrong sums without a word.

Sick
----
Rank 1 gathers where the others reduce:

    rank 0 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllGather)
    rank 2 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)

Rank 1 is behind when the job is torn down:

    rank 0 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=0,host=a,complete,aborted)
           | logged_calls(comm=world,count=9,start=7,calls=AllReduce+Reduce+Reduce)
    rank 1 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=1,host=a,complete,aborted)
           | logged_calls(comm=world,count=7,start=7,calls=AllReduce)
    rank 2 | nccl_process(host=a)
           | communicator(comm=world,size=3,member=2,host=a,complete,aborted)
           | logged_calls(comm=world,count=9,start=7,calls=AllReduce+Reduce+Reduce)

Well
----
The log was copied while the job ran: a rank is a call behind, and nothing is wrong:

    rank 0 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=8,calls=AllReduce+Broadcast)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=8,start=8,calls=AllReduce)

A line that was cut may have been any call:

    rank 0 | nccl_process(host=a)  logged_calls(comm=world,count=9,start=4,calls=%3F)
    rank 1 | nccl_process(host=a)
           | logged_calls(comm=world,count=9,start=4,calls=AllReduce)

Unknown
-------
A rank that is not in the log may have the reason:

    rank 0 | nccl_process(host=a)
    rank 1 | ?

Remedy
------
Let all ranks make the same calls in the same order with the same arguments. Run
`distdoctor check` on the script: it names the line, and the branch by which the ranks
parted.

Known problems
--------------
A line tells that a call was enqueued, not that it completed. Sends and receives are not
compared. Where the head of a log is missing, calls are not lined up. Replays of a CUDA
graph print nothing.

References
----------
- NCCL: environment variables –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.communicators.unequal_counts import unequal_counts
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.nccl.log_diagnosis import findings_of
from distdoctor.analysis.nccl.logged_job import Wording, Words, spoken, who
from distdoctor.analysis.nccl.mismatch_facts import (
    LoggedDifference,
    LoggedLag,
    LoggedMisfit,
    OtherSizes,
    RefusedCall,
)
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.nccl import NcclProcess
from distdoctor.model.run import Run

CODE = "DD608"
SEVERITY = Severity.ERROR
NEEDS = (NcclProcess,)


def _of_a_difference(calls: LoggedDifference) -> Wording:
    return Wording(
        _parting(calls),
        "Let all ranks make the same calls in the same order with the same "
        "arguments; look at what branches by rank.",
    )


def _parting(calls: LoggedDifference) -> str:
    how, ordinal, on = calls.how, calls.ordinal, spoken(calls.comm)
    usual, other = calls.usual, calls.other
    subject = capital(who(calls.odd))
    if how == "missing":
        return (
            f"{subject}: call {ordinal:,} on {on} is missing, {usual}: from there on "
            "its calls are those that the others make one later."
        )
    if how == "extra":
        return (
            f"{subject}: call {ordinal:,} on {on}, {other}, is one that the others "
            "leave out."
        )
    if how == "swapped":
        return (
            f"{subject}: calls {ordinal:,} and {ordinal + 1:,} on {on} are in another "
            "order."
        )
    what = _what_differs(usual, other)
    return (
        f"{subject}: call {ordinal:,} on {on} is {other}, and that of "
        f"{who(calls.group)} is {usual}: {what} differs."
    )


def _what_differs(a: str, b: str) -> str:
    op, _, rest = a.partition("(")
    other_op, _, other_rest = b.partition("(")
    if op != other_op:
        return "the operation"
    mine, theirs = rest.rstrip(")").split(", "), other_rest.rstrip(")").split(", ")
    (count, _, dtype), (other_count, _, other_dtype) = (
        one[0].partition(" ") for one in (mine, theirs)
    )
    found = []
    if count != other_count:
        found.append("count")
    if dtype != other_dtype:
        found.append("datatype")
    if mine[1:] != theirs[1:]:
        found.append("root" if "root" in rest else "reduce op")
    return "the " + " and ".join(found or ["call"])


def _of_a_lag(calls: LoggedLag) -> Wording:
    are = "is" if len(calls.behind) == 1 else "are"
    by = calls.most - calls.least
    return Wording(
        f"{capital(who(calls.behind))} {are} {by:,} call{'s' * (by > 1)} behind on "
        f"{spoken(calls.comm)}: {calls.least:,} calls, and up to {calls.most:,} of the "
        f"others; missing there is call {calls.least + 1:,}, {calls.missed}.",
        "Look at the stack of the rank that is behind: it is in other code.",
    )


def _of_a_misfit(unlike: LoggedMisfit) -> Wording:
    one = unlike.message
    suspect = f"; until then all were {one.usual}" if unlike.is_odd else ""
    return Wording(
        f"{capital(who([unlike.sender]))} sends {one.sent} to "
        f"{who([unlike.receiver])}, which receives {one.received}: message "
        f"{one.number:,} between them on {spoken(one.comm)}{suspect}.",
        "Let both sides agree about the size and the data type.",
    )


def _of_a_refused_call(call: RefusedCall) -> Wording:
    return Wording(
        f"{capital(who(call.parties))} called NCCL with what it refuses: {call.text}",
        "Mend the call in the program.",
    )


def _of_other_sizes(sizes: OtherSizes) -> Wording:
    around = f"; it names {sizes.ranks}" if sizes.ranks else ""
    return Wording(
        f"{capital(who(sizes.parties))} got data of another size than it expected: "
        f"calls, or settings of NCCL, differ between ranks{around}: {sizes.text}",
        "Compare the calls (NCCL_DEBUG_SUBSYS=COLL), the settings and the versions of "
        "the ranks.",
    )


_WORDS: Words = {
    LoggedDifference: _of_a_difference,
    LoggedLag: _of_a_lag,
    LoggedMisfit: _of_a_misfit,
    RefusedCall: _of_a_refused_call,
    OtherSizes: _of_other_sizes,
}


def examine(run: Run) -> Iterator[Finding]:
    """Calls that do not match, or are not there."""
    yield from findings_of(run, CODE, _WORDS)
    yield from unequal_counts(run)
    require_whole(run)
