"""Ranks waited in a call until their time was up, and the job was aborted.

What it is
----------
A collective did not complete within its timeout, and the ranks that waited in it gave
up: the watchdog of an NCCL group ("Watchdog caught collective operation timeout"),
gloo ("Timed out waiting"), a monitored barrier, or Horovod, by its stall inspector or
its timeline. Who gave up is a victim. The cause is the rank that did not come: it waits
in an earlier call of the group, or in another one, or it told of no timeout at all.

Why it matters
--------------
Every waiting rank prints pages of errors, the one that matters prints nothing, and
launchers name as the root cause whoever gave up first.

Sick
----
Rank 2 never told of a timeout; the others waited for it:

    rank 0 | start=4 timed_out(op=all_reduce,number=31)
    rank 1 | start=4 timed_out(op=all_reduce,number=31)
    rank 2 | start=4
    rank 3 | start=4 timed_out(op=all_reduce,number=31)

Ranks 1 and 2 told of no timeout, but how far they had come: rank 2 had not come:

    rank 0 | start=4 timed_out(op=all_reduce,number=31)
    rank 1 | start=4 enqueued(number=33)
    rank 2 | start=4 enqueued(number=30)
    rank 3 | start=4 timed_out(op=all_reduce,number=31)

Rank 2 is a call behind:

    rank 0 | start=3 timed_out(op=all_reduce,number=31)
    rank 1 | start=3 timed_out(op=all_reduce,number=31)
    rank 2 | start=3 timed_out(op=all_gather,number=30)

Rank 0 is in another call at the same point:

    rank 0 | start=3 timed_out(op=broadcast,number=7)
    rank 1 | start=3 timed_out(op=all_reduce,number=7)
    rank 2 | start=3 timed_out(op=all_reduce,number=7)

A monitored barrier names who did not come:

    rank 0 | start=2 timed_out(by=monitored_barrier,op=monitored_barrier,absent=1)
    rank 1 | start=2

Horovod's stall inspector names who did not submit a tensor:

    rank 0 | start=3 timed_out(by=stall_inspector,absent=2,lacking=allreduce.loss)
    rank 1 | start=3
    rank 2 | start=3

Its timeline shows that nothing moved for minutes, and who had come to what:

    rank 0 | start=3 open_negotiation(tensor=allreduce.loss,came=0+1,seconds=300)
    rank 1 | start=3
    rank 2 | start=3

All wait in one call: it is the network or a GPU, and no rank:

    rank 0 | start=2 timed_out(op=all_reduce,number=31)
    rank 1 | start=2 timed_out(op=all_reduce,number=31)

Well
----
A barrier told that a rank was late, the program went on, and all ended well:

    rank 0 | start=2  timed_out(by=monitored_barrier,absent=1)  leave  exit=0
    rank 1 | start=2  leave                                     exit=0

A timeline of Horovod's ends while a rank has not come yet, and all ended well:

    rank 0 | start=2  open_negotiation(tensor=allreduce.loss,came=0,members=2)  exit=0
    rank 1 | start=2  exit=0

Unknown
-------
A rank of which nothing is known may have waited in vain:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Look at what the rank that is named did then: its stack, its last lines, a checkpoint or
an evaluation that it alone makes, a loader that starved. Raise the timeout only for
steps that are known to be long. Where all ranks wait in one call, look at the network
and the GPUs (`dmesg`, counters of the links, NCCL's own log).

Known problems
--------------
A timeline of Horovod's lacks its last event, and more of them if the job ended by
itself; so who is missing at its end counts only if nothing moved for a minute before,
and for ten times as long as ranks had ever waited. A tensor of a process set is told by
the others of its kind only. A timeout tells that a rank did not come in time, not that
it would never have come. A rank that told of no timeout may have lost its last lines,
or its log is not here; so only what a barrier says and what ranks wait in instead is
sure. Of a group that has not
all ranks, members that are silent are told by those around them.

References
----------
- `torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp` (pytorch/pytorch), the watchdog
- `horovod/common/stall_inspector.cc` (horovod/horovod)
- torch.distributed: monitored_barrier –
  https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.failures.open_negotiations import (
    HeldUp,
    called,
    held_up_for_long,
)
from distdoctor.analysis.failures.timeouts import (
    BEHIND,
    NAMED,
    SILENT,
    TOGETHER,
    UNCLEAR,
    Timeout,
    timeout,
)
from distdoctor.model.events import Failure, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.failures import (
    STALL,
    Overdue,
    TimedOut,
)
from distdoctor.model.run import Run, named

CODE = "DD609"
SEVERITY = Severity.ERROR
NEEDS = (Overdue,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that were given up because a rank did not come."""
    reported = timeout(run)
    if reported is None:
        yield from _of_negotiations(run)
        require_whole(run)
        return
    absent = tuple(rank for rank in reported.absent if rank < run.world_size)
    waited = {*reported.waiting}
    if reported.call.by == STALL:  # it ended the job, and all that waited raise
        waited |= {rank for rank in run.seen if _failed_for_peer(run, rank)}
    victims = tuple(sorted(waited - {*absent}))
    places: dict[Place, list[int]] = {}
    for rank, one in reported.waiting.items():
        if one.place is not None:
            places.setdefault(one.place, []).append(rank)
    yield Finding(
        message=_message(reported),
        exhibits=tuple(reported.waiting.values()),
        culprits=absent,
        victims=victims,
        locations=tuple(
            Location(
                place,
                tuple(ranks),
                Role.CULPRIT if set(ranks) <= set(absent) else Role.VICTIM,
                "waited here",
            )
            for place, ranks in places.items()
        ),
        certainty=Certainty.LIKELY,
        details={
            "how": reported.how,
            "op": reported.call.op,
            "number": reported.call.number,
            "group": reported.call.group,
            "seconds": reported.call.seconds,
        },
    )


def _of_negotiations(run: Run) -> Iterator[Finding]:
    """What Horovod waited for at the end of its timeline, for long."""
    held = held_up_for_long(run)
    if held is None:
        return
    one = held.negotiation
    yield Finding(
        message=_of_timeline(held),
        exhibits=(one,),
        culprits=held.culprits,
        victims=tuple(rank for rank in one.came if rank not in held.culprits),
        certainty=Certainty.LIKELY,
        details={
            "how": "timeline",
            "op": one.op,
            "tensor": one.tensor,
            "came": list(one.came),
            "absent": list(held.absent),
            "seconds": one.seconds,
        },
    )


def _message(reported: Timeout) -> str:
    if reported.call.by == STALL:
        return _of_inspector(reported.call)
    victims = [rank for rank in reported.waiting if rank not in reported.absent]
    who = capital(named(victims or reported.waiting))
    waited = f"{who} waited {_long(reported.call)}in {_call(reported.call)} in vain"
    if reported.how == TOGETHER:
        return (
            f"{waited}, all in the same call: no rank is known to be missing, so the "
            "network, a GPU, or a rank of which nothing was found is at fault."
        )
    if reported.how == UNCLEAR:
        return f"{waited}; who did not come is not known."
    if reported.silent:
        numbers = ", ".join(map(str, reported.silent))
        return f"{waited}; of the group's members, number {numbers} told of no timeout."
    if not reported.absent:
        return f"{waited}: they stood in different calls, and none is in the minority."
    absent = named(reported.absent)
    if reported.how == NAMED:
        return f"{waited}: the barrier names {absent} as not having come."
    if reported.other:
        rank = next(iter(reported.other))
        relation = "was behind, in" if reported.how == BEHIND else "stood in"
        return f"{waited}, while {absent} {relation} {_call(reported.other[rank])}."
    assert reported.how == SILENT
    return f"{waited}; {absent} told of no timeout, and did not come."


def _failed_for_peer(run: Run, rank: int) -> bool:
    return any(failure.secondary for failure in run.of(Failure, rank))


def _of_inspector(one: TimedOut) -> str:
    """What Horovod's stall inspector told: who did not submit what others had."""
    lacking = (*one.lacking, *[""] * len(one.absent))
    by_tensors: dict[str, list[int]] = {}
    for rank, tensors in zip(one.absent, lacking, strict=False):
        by_tensors.setdefault(tensors, []).append(rank)
    each = "; ".join(
        f"{named(ranks)} had not submitted {tensors or 'what others had'}"
        for tensors, ranks in by_tensors.items()
    )
    return f"Horovod waited in vain, as its stall inspector tells: {each}."


def _of_timeline(held: HeldUp) -> str:
    """What Horovod's timeline shows at its end."""
    one = held.negotiation
    came = f"{named(one.came)} had come" if one.came else "who had come is not told"
    waited = (
        f"Horovod waited for {one.seconds:,.0f} s, up to the end of its timeline, for "
        f"ranks to come to {called(one)}: {came}"
    )
    if held.other:
        return f"{waited}, and others wait in {held.other}."
    if held.absent and not held.is_unsure:
        return f"{waited}, and {named(held.absent)} had not."
    if held.absent:
        return f"{waited}, and of {named(held.absent)} all but one at most had not."
    return f"{waited}; which ranks are missing is not told."


def _long(one: TimedOut) -> str:
    return f"{one.seconds:,.0f} s " if one.seconds else ""


def _call(one: TimedOut) -> str:
    call = one.op or "a call"
    if one.number:
        call += f" (number {one.number}"
        call += f" of group {one.group})" if one.group else ")"
    return call
