"""Much of each step is communication that no computation overlaps.

What it is
----------
A trace of torch.profiler shows when a rank communicated and when it computed. A good
part of the step it does nothing but communicate: gradients are averaged after backward
and not while it runs, buckets are so large that the last one comes late, there is too
little to compute for what is sent, or the rank stands in a collective and waits for
another one that has not come.

Why it matters
--------------
That time is lost: the device is paid for and does not compute. It grows with the number
of ranks, and slower links than those of the trace make it longer.

Sick
----
Of each step of 9 ms, 4 ms are collectives behind backward:

    rank 0 | traced_steps(kernels,step_us=9000-9004,exposed_us=4000-4004,waiting_us=1-5)
    rank 1 | traced_steps(kernels,step_us=9000-9004,exposed_us=4000-4004,waiting_us=1-5)

Rank 0 waits for rank 1, which computes meanwhile:

    rank 0 | traced_steps(step_us=9000-9002,exposed_us=4000-4002,waiting_us=3900-3902)
    rank 1 | traced_steps(step_us=9000-9002,exposed_us=100-102,waiting_us=0-2)
           | traced_lateness(times=3,joint=3,waited_us=11703,late_us=11703)

Of rank 1 there is no trace, so that nobody knows who waits:

    rank 0 | traced_steps(kernels,step_us=9000-9004,exposed_us=4000-4004,why=no%20trace)
    rank 1 | ?

Well
----
As much is sent while backward runs, and only the last bucket comes behind it:

    rank 0 | traced_steps(step_us=9000-9004,calls_us=4000-4004,exposed_us=800-804)
    rank 1 | traced_steps(step_us=9000-9004,calls_us=4000-4004,exposed_us=800-804)

One step is slow, and makes most of the time:

    rank 0 | traced_steps(step_us=9000-9003+90000,exposed_us=500-503+80000)
    rank 1 | traced_steps(step_us=9000-9003+90000,exposed_us=500-503+500)

Two steps tell nothing:

    rank 0 | traced_steps(step_us=9000+9000,exposed_us=4000+4000)
    rank 1 | traced_steps(step_us=9000+9000,exposed_us=4000+4000)

Unknown
-------
Of rank 1 there is no trace:

    rank 0 | traced_steps(step_us=9000-9004,exposed_us=800-804,why=no%20trace)
    rank 1 | ?

Remedy
------
Where most of it is waiting for one rank, see what that rank does meanwhile: if it
computes, give all the same work (samples by length, an even cut of the model); if not,
its program keeps it (loading data, logging, checkpoints, `.item()`). Else let
communication run while backward does: by DistributedDataParallel or FSDP instead of a
loop behind backward; and average once where gradients are accumulated (`no_sync`).

Where it overlaps already, try other buckets (`bucket_cap_mb`: smaller ones begin
earlier, larger ones cost fewer starts), prefetching (FSDP), gradients in bfloat16 (a
communication hook), or a larger batch per rank, so that more is computed for what is
sent. A rank that computes longer than others on the same work has a slower device.

Known problems
--------------
It is of the steps that were profiled, and the profiler itself takes time. On a GPU a
collective is a kernel that also runs while it waits for others, and communication on a
machine of its own is faster than on many. It is told from a third of the time of a step
on, in three steps or more, if four of five steps have at least a quarter: a large fleet
had 14 to 32 % (Hsia et al.), and a single slow step is no rule. Copies are no
computation; nor is what a rank on the CPU does outside of torch's operators. Waiting is
known for all-reduce, all-gather and reduce-scatter, where the traces of all members are
there and hold the same calls; the bubbles of a pipeline are exposed communication, too.

References
----------
- Holistic Trace Analysis, on the overlap of communication and computation –
  https://github.com/facebookresearch/HolisticTraceAnalysis
- TraceLens, on latency as the shortest duration of all ranks –
  https://rocm.docs.amd.com/projects/tracelens/en/latest/how-to/nccl-analysis.html
- Hsia et al. (2024), MAD-Max Beyond Single-Node – https://arxiv.org/abs/2310.02784
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.collectives.exposed_calls import (
    ExposedCalls,
    exposed_calls,
    traced,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.errors import MissingEvidence
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.collectives import TracedLateness, TracedSteps
from distdoctor.model.run import Run, named

CODE = "DD542"
SEVERITY = Severity.NOTE
NEEDS = (TracedSteps,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that mostly communicate, or wait in a collective."""
    for one in exposed_calls(run):
        yield _finding(one)
    if traced(run) and run.missing:
        rank = next(iter(run.missing))
        raise MissingEvidence(f"of rank {rank}: {run.unseen[rank]}")
    require_whole(run)


def _finding(one: ExposedCalls) -> Finding:
    kernels, annotated = one.steps[0].kernels, one.steps[0].annotated
    what = "kernel of computation" if kernels else "operator of torch"
    steps = max(len(each.step_us) for each in one.steps)
    parts = f"{steps:,} steps" if annotated else f"each of {steps} parts of the trace"
    late = one.late
    return Finding(
        message=f"On {named(one.ranks)}, {one.share:.0%} of the time is communication "
        f"that no {what} overlaps: {one.exposed_ms:.3g} of {one.step_ms:.3g} ms, on "
        f"average of {parts}; {_waiting(one, kernels)}.",
        exhibits=(*one.steps, *([late] if late else [])),
        culprits=(late.rank,) if late else (),
        victims=tuple(r for r in one.ranks if r != late.rank) if late else (),
        certainty=Certainty.PROVED,
        details={
            "share": round(one.share, 3),
            "step_ms": round(one.step_ms, 3),
            "exposed_ms": round(one.exposed_ms, 3),
            "waiting_share": None if one.waiting is None else round(one.waiting, 3),
        },
    )


def _waiting(one: ExposedCalls, kernels: bool) -> str:
    """How much of it is waiting, and for whom."""
    if one.waiting is None:
        return f"how much of that is waiting for a late rank is not known ({one.why})"
    if one.late is None:
        return f"{one.waiting:.0%} of that is waiting for ranks that come later"
    return (
        f"{one.waiting:.0%} of that is waiting for {named([one.late.rank])}, which "
        f"came last to {one.late.times:,} of {one.late.joint:,} collectives; "
        f"{_meanwhile(one.late, kernels)}"
    )


def _meanwhile(late: TracedLateness, kernels: bool) -> str:
    share = late.computing_us / late.late_us if late.late_us else 0.0
    who = f"{named([late.rank])} computed"
    where = "on its device" if kernels else "by torch's operators"
    return f"{who} {where} during {share:.0%} of the time by which it was late"
