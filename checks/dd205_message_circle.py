"""Ranks wait for each other's messages in a circle.

What it is
----------
Every rank sends first and receives afterwards (or the other way round): each waits
until its neighbour takes the message, and the neighbour waits for its own. Nothing is
missing, only the order is wrong. gloo takes asynchronous messages in any order; NCCL
makes those of a pair of ranks one after another, unless they are given to it at once:
a run that got by on gloo and would not on NCCL is told as a warning.

Why it matters
--------------
Whether a send waits for its receive depends on backend, size and release: what went
well on two ranks or with small messages stands still on the cluster.

Sick
----
A ring in which everybody sends first:

    rank 0 | send(4,peer=1)@t.py:7...
    rank 1 | send(4,peer=2)@t.py:7...
    rank 2 | send(4,peer=0)@t.py:7...

Both receive first:

    rank 0 | recv(4,peer=1)@t.py:7...
    rank 1 | recv(4,peer=0)@t.py:7...

A warning: this went well on gloo; on NCCL both sends come first, each before the
receive that its neighbour's waits for:

    rank 0 | send(4,peer=1)@t.py:7&  recv(4,peer=1)@t.py:8  exit=0
    rank 1 | send(4,peer=0)@t.py:7&  recv(4,peer=0)@t.py:8  exit=0

Well
----
Given to `batch_isend_irecv` together, in any order:

    rank 0 | send(4,peer=1)+  recv(4,peer=1)+  barrier  exit=0
    rank 1 | send(4,peer=0)+  recv(4,peer=0)+  barrier  exit=0

Three ranks in a ring whose sends do not wait: each pair has its own order:

    rank 0 | send(4,peer=1)&  recv(4,peer=2)  exit=0
    rank 1 | send(4,peer=2)&  recv(4,peer=0)  exit=0
    rank 2 | send(4,peer=0)&  recv(4,peer=1)  exit=0

A pipeline of two stages, one forward and one backward in turn:

    rank 0 | send(4,peer=1)  send(4,peer=1)&  recv(4,peer=1)  recv(4,peer=1)  exit=0
    rank 1 | recv(4,peer=0)  recv(4,peer=0)&  send(4,peer=0)  send(4,peer=0)  exit=0

Even ranks send first, odd ones receive first:

    rank 0 | send(4,peer=1)  recv(4,peer=1)  exit=0
    rank 1 | recv(4,peer=0)  send(4,peer=0)  exit=0

A chain has an end: rank 2 is on its way, and then all can go on:

    rank 0 | send(4,peer=1)...
    rank 1 | send(4,peer=2)...
    rank 2 | .

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  send(4,peer=1)  exit=0
    rank 1 | ?

Remedy
------
Hand all sends and receives of an exchange to `batch_isend_irecv` at once and wait
afterwards, or let every other rank receive before it sends.

Known problems
--------------
NCCL is never asked: what it would do is worked out by its rules for a pair of ranks,
and an order that only NCCL minds is a warning. Where one side of a halo exchange drops
a message, what is left over may close a circle, and is told here though DD112 is the
cause.

References
----------
- NCCL: the sequence of send and recv can deadlock –
  https://github.com/NVIDIA/nccl/issues/479
- pytorch: interleaved isend and irecv hang –
  https://github.com/pytorch/pytorch/issues/109401
- NCCL: Point-to-point communication –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.deadlock.circular_waits import WaitCircle
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.p2p.blocking_sends import HeldCall
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD205"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Circles of ranks that wait for each other's messages, or would on NCCL."""
    yield from findings(run, Cause.MESSAGES)
    yield from findings(run, Cause.RENDEZVOUS, severity=Severity.WARNING)
    require_whole(run)


@sentence_of(Cause.MESSAGES)
def _of_a_circle(circle: WaitCircle) -> str:
    return f"{circle}."


@sentence_of(Cause.RENDEZVOUS)
def _of_a_circle_on_nccl(circle: tuple[HeldCall, ...]) -> str:
    ranks = dict.fromkeys(held.call.rank for held in circle)
    steps = "; ".join(
        f"rank {held.call.rank} in {held.call.op} for {named(held.needs)}"
        for held in circle
    )
    return (
        "This run went well, but NCCL makes the calls of a pair one after another: "
        f"{named(ranks)} would wait in a circle there ({steps}), unless the messages "
        "are small enough to be buffered."
    )
