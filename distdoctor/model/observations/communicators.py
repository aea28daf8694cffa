"""What NCCL tells of its communicators from within: their status, and how long it took.

Members of a communicator are told by their rank in it; `known` is the rank in the job,
where it can be told. These are observations of the job, made by looking at it from one
place: they stand under any rank, or under -1.
"""

from __future__ import annotations

from enum import StrEnum

from distdoctor.model.events import Observation
from distdoctor.model.values import value


class MemberState(StrEnum):
    """What is wrong with a member; the values are those of records."""

    DEAD = "dead"  # its process was unreachable for so long that RAS gave it up
    SILENT = "silent"  # its process did not answer in time
    LEFT = "left"  # its process answers, and has no such communicator
    ABORTED = "aborted"
    FINALIZED = "finalized"
    FAILED = "failed"  # NCCL gave it an error


@value(frozen=True, slots=True, kw_only=True)
class CommunicatorLook(Observation):
    """NCCL's RAS told of a communicator."""

    look: int = 0  # number of the look at the job, from 0
    at_s: int = 0  # when, in seconds from any moment on; 0: not known
    comm: str = ""  # NCCL's hash of it
    size: int = 0
    answered: int = 0  # members that told of themselves
    ending: bool = False  # a member aborts or finalizes it
    operations: int = 0  # the sum of their counts, if they are known one by one


@value(frozen=True, slots=True, kw_only=True)
class AilingMember(Observation):
    """NCCL's RAS told of a member that is not, or no longer, well."""

    look: int = 0
    comm: str = ""
    member: int = 0
    known: int = -1
    host: str = ""  # an address
    pid: int = 0
    device: int = -1
    state: str = ""  # a `MemberState`
    error: str = ""  # what NCCL says


@value(frozen=True, slots=True, kw_only=True)
class LaunchedCount(Observation):
    """Members of a communicator had launched equally many operations of one kind.

    Told of kinds of which not all members had launched equally many.
    """

    look: int = 0
    comm: str = ""
    op: str = ""  # as NCCL names it, such as "AllReduce"
    launched: int = 0
    count: int = 0  # members
    members: tuple[int, ...] = ()  # those that are named: all of them, or none
    known: tuple[int, ...] = ()  # their ranks in the job, if those of all can be told


@value(frozen=True, slots=True, kw_only=True)
class MemberWaits(Observation):
    """How long the others of a communicator waited for a member, each time.

    All members end a collective together: who comes last has the shortest duration.
    Each such collective is told by one wait: by how much the others' durations are
    longer, in the median.
    """

    comm: str = ""
    size: int = 0
    member: int = 0
    known: int = -1
    host: str = ""
    joint: int = 0  # collectives of which the durations on all members are known
    every: int = 0  # collectives that there were between the first and the last of them
    span_ms: int = 0  # from the first of them to the last
    waits_ms: tuple[int, ...] = ()  # those of 1 ms and more


@value(frozen=True, slots=True, kw_only=True)
class TransferTime(Observation):
    """How long a collective of one size took once all members were there."""

    comm: str = ""
    size: int = 0
    hosts: tuple[str, ...] = ()
    op: str = ""
    size_bytes: int = 0
    times: int = 0  # how many there were
    median_us: int = 0


KINDS = (CommunicatorLook, AilingMember, LaunchedCount, MemberWaits, TransferTime)
