"""What a rank told of calls that did not come to their end in time."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value

WATCHDOG, GLOO, BARRIER = "watchdog", "gloo", "monitored_barrier"
STALL = "stall_inspector"
"""Who gave a call up: NCCL's watchdog, gloo, such a barrier, Horovod's inspector."""


@value(frozen=True, slots=True, kw_only=True)
class Overdue(Observation):
    """Something that tells that a rank did not come to a call in time."""


@value(frozen=True, slots=True, kw_only=True)
class TimedOut(Overdue):
    """The rank gave up a call that others did not join in time, and said so."""

    by: str = WATCHDOG
    op: str = ""  # name of the function users call; empty: not known
    group: str = (
        ""  # as torch names it in its log; empty: that of all ranks, or unknown
    )
    group_rank: int = -1  # its rank in that group; -1: not known
    number: int = 0  # of the call in its group, from 1; 0: not known
    numel_in: int = -1  # elements that it gave; -1: not known
    numel_out: int = -1  # elements that it was to get
    seconds: float = 0.0  # for which it waited
    enqueued: int = -1  # number of the last call it had issued; -1: not known
    absent: tuple[int, ...] = ()  # ranks that it names as those that did not come
    lacking: tuple[str, ...] = ()  # of each of them, the tensors it did not submit


@value(frozen=True, slots=True, kw_only=True)
class Enqueued(Observation):
    """How far the rank had come in a group when the job was aborted: it said so."""

    group: str = ""  # as in `TimedOut`
    number: int = 0  # of the last call that it had given to the backend, from 1


@value(frozen=True, slots=True, kw_only=True)
class OpenNegotiation(Overdue):
    """Horovod's timeline, which rank 0 writes, ends before all came to an operation."""

    tensor: str = ""  # as Horovod calls it, such as "allreduce.loss"; empty: not known
    op: str = ""  # name of the function that torch's users call
    came: tuple[int, ...] = ()  # ranks that had announced it
    members: int = (
        0  # how many ranks it takes, where the timeline tells; 0: it does not
    )
    mixed: bool = False  # not all operations took as many: process sets, or join()
    kept_back: bool = False  # the writer may know of one more rank that had come
    cached: bool = False  # it was done before, and then who comes is not written down
    seconds: float = 0.0  # from when anything last moved to the end of the timeline
    longest: float = 0.0  # that ranks had waited for each other before


@value(frozen=True, slots=True, kw_only=True)
class MessageTooLarge(Observation):
    """Gloo ended a process, since a peer sent it more than its collective awaits.

    Source: `gloo/transport/tcp/pair.cc`, "op.preamble.length <= op.nbytes".
    """

    received: int = -1  # bytes that a peer sent; -1: not known
    expected: int = -1  # bytes that there is room for
    aborted: tuple[int, ...] = ()  # ranks that it ended; empty: not known which


KINDS = (TimedOut, Enqueued, OpenNegotiation, MessageTooLarge)
