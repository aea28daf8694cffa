"""A send has no receive, or a receive no send.

What it is
----------
One side of a message is in a branch that the other side knows nothing of: a rank with
an empty batch sends no result, a stage leaves the loop one micro-batch early, the last
rank sends to a neighbour that is not there. The other rank waits for it and the first
one goes on, to a collective, to its next message or to its end.

Why it matters
--------------
The rank that waits never goes on, and no timeout names the one that left its side out.
A message that is never waited for is forgotten by gloo; NCCL does not end before it.

Sick
----
Rank 2 has nothing to send, and is at the collective already:

    rank 0 | recv(4,peer=1)@t.py:9  recv(4,peer=2)@t.py:9...  .
    rank 1 | send(4,peer=0)@t.py:5  broadcast(4)@t.py:11...   .
    rank 2 | broadcast(4)@t.py:11...

Nobody receives; the other rank is done:

    rank 0 | send(4,peer=1)@t.py:5  send(4,peer=1)@t.py:5...
    rank 1 | recv(4,peer=0)@t.py:9  leave  exit=0

Rank 1 skips its answer, for the first time, and both wait for the next message:

    rank 0 | send(peer=1)@t:4  recv(peer=1)@t:5  send(peer=1)@t:4  recv(peer=1)@t:5...
    rank 1 | recv(peer=0)@t:8  send(peer=0)@t:9  recv(peer=0)@t:8  recv(peer=0)@t:8...

Rank 2 alone receives from the next rank, and all wait around the ring:

    rank 0 | send(peer=1)@t:8&...issued  recv(peer=3)@t:9    send(peer=1)@t:8...
    rank 1 | send(peer=2)@t:8&...issued  recv(peer=0)@t:9    recv(peer=0)@t:9...
    rank 2 | send(peer=3)@t:8&...issued  recv(peer=3)@t:9... .
    rank 3 | send(peer=0)@t:8&...issued  recv(peer=2)@t:9    recv(peer=2)@t:9...

Of any source, and all have gone:

    rank 0 | recv_any(4)@t.py:9  recv_any(4)@t.py:9...
    rank 1 | send(4,peer=0)@t.py:5  exit=0

A warning: the job ended well, and a message was never received:

    rank 0 | send(4,peer=1)@t.py:5&...issued  exit=0
    rank 1 | .                                exit=0

Well
----
The sender is on its way:

    rank 0 | recv(4,peer=1)...
    rank 1 | .

A receive from any source took it:

    rank 0 | send(4,peer=1)&  exit=0
    rank 1 | recv_any(4)      exit=0

A thread of the background listens until its process ends:

    rank 0 | recv(1,peer=1,tag=9)...%7  send(4,peer=1)  exit=0
    rank 1 | .                          recv(4,peer=0)  exit=0

A wait for the stop that comes as a broken connection:

    rank 0 | recv(4,peer=1)  recv(4,peer=1)^  .     exit=0
    rank 1 | send(4,peer=0)  .                leave exit=0

Unknown
-------
A rank without a journal may have left its side out:

    rank 0 | ?
    rank 1 | recv(4,peer=0)  exit=0

Remedy
------
Take the send, or the receive, out of the branch: send a message in any case, an empty
one if need be, or tell the other rank beforehand how many will come. Receive, or wait
for, all that was sent before the end. Where a rank names the wrong peer, compute peers
for sends and receives in one place: who sends to `rank + 1` is heard by `rank - 1`.

Known problems
--------------
A message that nobody took when the job ended well is a warning only: gloo forgets it,
and NCCL is never asked. A lost message to a thread that listens until the process ends
is not seen, for such a thread always waits for one.

References
----------
- NCCL: a receive of a batch that no send answers –
  https://github.com/NVIDIA/nccl/issues/2130
- NCCL: Point-to-point communication –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.p2p.one_sided_messages import (
    AwaitedFromAny,
    FirstExchange,
    MissingSide,
    OddMessage,
    OtherPeer,
    UnmetBatches,
    UntakenMessage,
    UnusualPeer,
)
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD112"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Messages with one side only; what merely stayed behind is a warning."""
    yield from findings(run, Cause.UNANSWERED)
    yield from findings(run, Cause.LEFT_OVER, severity=Severity.WARNING)
    require_whole(run)


@sentence_of(Cause.UNANSWERED)
def _no_other_side(
    message: MissingSide
    | AwaitedFromAny
    | OtherPeer
    | UnmetBatches
    | FirstExchange
    | UnusualPeer
    | OddMessage,
) -> str:
    call = message.call
    match message:
        case MissingSide():
            return _missing_side(message)
        case AwaitedFromAny(ended=ended):
            return (
                f"Rank {call.rank} waits in {call.op} for a message from any rank, and "
                f"{named(ended)} ended without sending one more; one of them may have "
                "left it out."
            )
        case OtherPeer(ways=ways):
            here = "at this line " if message.call.place else ""
            return f"{capital(_one_side(message))}; {here}the other ranks name {ways}."
        case UnmetBatches(ranks):
            return (
                f"The batches of messages of {named(ranks)} have no two sides that "
                f"meet: {_one_side(message)}, and so on around."
            )
        case FirstExchange():
            return (
                f"{capital(_one_side(message))}: these two have not exchanged a "
                "message before, and all others that wait for each other here have."
            )
        case UnusualPeer(usual=usual, place=place):
            return (
                f"{capital(_one_side(message))}: as message {place} behind a "
                f"collective of its own it has named rank {usual} each time before."
            )
        case OddMessage(rank=rank, what=what, place=place, kept=True):
            return (
                f"Rank {call.rank} {_wants(call)}: {what} at {place} keeps rank {rank} "
                "alone from the other side of that message."
            )
        case OddMessage(rank=rank, what=what, place=place):
            return (
                f"Rank {rank} {_wants(call)}: it has {what} at {place}, which no other "
                "rank has."
            )


def _missing_side(message: MissingSide) -> str:
    call, peer, stands = message.call, message.peer, message.stands
    waits = "waited in vain" if message.gave_up else "waits"
    lacks = "receives what it sends" if _sends(call) else "sends what it waits for"
    goes = "ended" if stands is None else f"waits in {stands.op} on {stands.group}"
    text = (
        f"Rank {call.rank} {waits} in {call.op} for rank {peer}, which never {lacks}: "
        f"it {goes} after {message.made} such calls."
    )
    if (wrong := message.wrong) is not None:
        text += (
            f" Rank {wrong.call.rank} names rank {wrong.peer} in {wrong.call.op}; at "
            f"this line the other ranks name {wrong.ways}."
        )
    return text


def _one_side(
    message: OtherPeer | UnmetBatches | FirstExchange | UnusualPeer,
) -> str:
    """Who has which side of a message, and whom it waits for."""
    call, peer = message.call, message.peer
    if _sends(call):
        return f"rank {call.rank} sends to rank {peer}, which does not receive from it"
    return (
        f"rank {call.rank} waits for a message from rank {peer}, which does not send "
        "it one"
    )


def _wants(call: Call) -> str:
    return "sends what nobody receives" if _sends(call) else "waits for a message"


def _sends(call: Call) -> bool:
    return call.op == "send"


@sentence_of(Cause.LEFT_OVER)
def _not_taken(sent: UntakenMessage) -> str:
    return (
        f"Rank {sent.rank} sent a message to rank {sent.peer} that nobody received "
        "before the job ended; where a send waits for its receive, it would not have "
        "ended."
    )
