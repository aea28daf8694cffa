"""The two sides of a message differ in size, dtype or tag.

What it is
----------
A send and the receive it meets move different numbers of elements or different
dtypes, or carry different tags: a stage of a pipeline makes room for activations of its
own configuration, one side moved to bfloat16, only one side counts its tags. The n-th
send from a rank to another with a tag meets the n-th receive there.

Why it matters
--------------
A message larger than its room ends the process (gloo: SIGABRT, with no word of the
line). A smaller one leaves the rest of the room as it was, and another dtype gives
other numbers: both without a word. A tag that nobody sends is waited for for ever.

Sick
----
The next stage has room for 8x16, and dies:

    rank 0 | send(8x24,peer=1)@t.py:7  recv(8x24,peer=1)@t.py:9...  .
    rank 1 | recv(8x16,peer=0)@t.py:15...  exit=134!

More room than was sent; nobody notices:

    rank 0 | send(4,peer=1)@t.py:7  exit=0
    rank 1 | recv(8,peer=0)@t.py:9  exit=0

Half the ranks have gone over to another dtype; the second message shows it:

    rank 0 | send(4,peer=1)@t.py:7  send(4:bfloat16,peer=1)@t.py:7  exit=0
    rank 1 | recv(4,peer=0)@t.py:9  recv(4:float16,peer=0)@t.py:9   exit=0

The one side counts its tags from 0, the other from 1:

    rank 0 | send(4,peer=1)@t.py:7...
    rank 1 | recv(4,peer=0,tag=1)@t.py:9...

Of any source, but nothing of that size was sent:

    rank 0 | send(4,peer=1)@t.py:7      exit=0
    rank 1 | recv_any(6)@t.py:9         exit=0

Well
----
Another shape with as many elements:

    rank 0 | send(2x3,peer=1)  exit=0
    rank 1 | recv(6,peer=0)    exit=0

Objects: first their sizes, then their bytes, which differ from message to message:

    rank 0 | send(1:int64,peer=1)  send(9:uint8,peer=1)  recv(1:int64,peer=1)
    rank 1 | recv(1:int64,peer=0)  recv(9:uint8,peer=0)  send(1:int64,peer=0)

Tags out of order, which asynchronous calls may take as they like:

    rank 0 | send(4,peer=1,tag=1)&  send(8,peer=1,tag=2)&  exit=0
    rank 1 | recv(8,peer=0,tag=2)   recv(4,peer=0,tag=1)   exit=0

Bytes that are meant as numbers:

    rank 0 | send(4,peer=1)         exit=0
    rank 1 | recv(16:uint8,peer=0)  exit=0

Of two messages, which one went to whom is not known:

    rank 0 | send(4,peer=2)  .             exit=0
    rank 1 | send(8,peer=2)  .             exit=0
    rank 2 | recv_any(8)     recv_any(4)   exit=0

Ranks of a subgroup are counted in it:

    group b | 2 3
    rank 0 | .                 exit=0
    rank 1 | .                 exit=0
    rank 2 | send(4,peer=1)/b  exit=0
    rank 3 | recv(4,peer=0)/b  exit=0

Unknown
-------
A rank without a journal may have sent something else:

    rank 0 | ?
    rank 1 | recv(4,peer=0)  exit=0

Remedy
------
Make the room from what is sent, not from the receiver's own settings: agree on one
configuration for all stages, or send shape and dtype first (`send_object_list`) and
allocate for them. Count tags the same way on both sides, or leave them out.

Known problems
--------------
Which message a receive from any source took is not known, so it is told only where none
that was sent could fit it. Equal numbers of bytes that both sides mean differently
pass.

References
----------
- NCCL: send and receive of different sizes, sometimes without an error –
  https://github.com/NVIDIA/nccl/issues/1938
- NCCL: Point-to-point communication –
  https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.p2p.p2p_mismatch import OtherTag, UnlikeContents
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD111"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Messages whose two sides do not fit."""
    yield from findings(run, Cause.MISFIT)
    require_whole(run)


@sentence_of(Cause.MISFIT)
def _sentence(message: UnlikeContents | OtherTag) -> str:
    match message:
        case OtherTag(send, receive):
            return (
                f"Rank {receive.rank} waits for a message with tag {receive.tag} from "
                f"rank {send.rank}, which has sent it one with tag {send.tag} that "
                f"rank {receive.rank} has not asked for."
            )
        case UnlikeContents(sender, given, receiver, wanted):
            what = ""
            if given.size_bytes == wanted.size_bytes:
                what = "; nothing fails: the bytes are read as other numbers"
                what += "; meant so, it would look the same"
            elif given.size_bytes < wanted.size_bytes:
                what = "; nothing fails: the rest of the room keeps what it held"
            return (
                f"Rank {sender} sends {given} to rank {receiver}, which receives "
                f"{wanted}{what}."
            )
