"""What single lines of a job's output say of how it went; see `line_meanings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchdogTimeout:
    """A rank's watchdog found a collective that did not complete in time.

    Attributes:
        group_rank: The rank in the group.
        group: The group, as the line names it; empty: it does not.
        number: Of the call in its group, from 1.
        op: As torch's C++ names it, such as "ALLREDUCE".
        numel_in: Elements of the tensors given; -1: not told.
        numel_out: Elements of the tensors received.
        seconds: For how long it ran.
    """

    group_rank: int
    group: str
    number: int
    op: str
    numel_in: int
    numel_out: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WatchdogStatus:
    """How far a rank had come in its group when its watchdog ended the process.

    Attributes:
        group_rank: The rank in the group.
        group: The group, as the line names it; empty: it does not.
        enqueued: Number of the last call that was given to the backend.
        completed: Number of the last one that was done.
    """

    group_rank: int
    group: str
    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class WatchdogError:
    """A rank's watchdog ended the process, for a call of NCCL or CUDA had failed.

    Attributes:
        group_rank: The rank in the group.
        group: The group, as the line names it; empty: it does not.
        why: What NCCL or CUDA said, and which of them.
    """

    group_rank: int
    group: str
    why: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """torchrun tells how a process ended: `status` as a shell counts it."""

    local: int
    pid: int
    status: int


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """torchrun ends a process, because another one failed; `forced`: by SIGKILL."""

    pid: int
    forced: bool = False


@dataclass(frozen=True, slots=True)
class StepAborted:
    """srun ends the tasks that are left, because another one failed."""


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A launcher tells how ranks ended.

    Attributes:
        ranks: Their numbers among the tasks of the launcher.
        status: As a shell counts it: 128 + n is signal n.
        starved: For want of memory.
        host: Where.
        stopped: The launcher ended them itself.
    """

    ranks: tuple[int, ...]
    status: int
    starved: bool = False
    host: str = ""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class StallWarning:
    """Horovod's stall inspector lists the ranks that have not submitted a tensor."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """This rank did not submit to Horovod what others had.

    Attributes:
        rank: Who.
        ended: Horovod ended the job for it; else it only warns, once a minute.
        tensors: What it did not submit; of many, six and dots.
    """

    rank: int
    ended: bool = True
    tensors: str = ""


@dataclass(frozen=True, slots=True)
class BarrierTimeout:
    """Rank 0 waited in vain for others in a monitored barrier.

    Attributes:
        absent: Who did not come.
        seconds: For how long it waited.
    """

    absent: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """A process ended by a fault of native code.

    Attributes:
        status: 128 + the signal.
        rank: A mark before this line alone, as mpirun puts it; -1: there is none.
    """

    status: int
    rank: int = -1


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The kernel ended a process for want of memory; pid -1: which one is not told."""

    pid: int
    words: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A job was ended from outside: by Slurm, at its time limit, or by a signal."""

    why: str
    host: str = ""
    by: str = "Slurm"


@dataclass(frozen=True, slots=True)
class GpuFault:
    """The driver reported a fault of a GPU: an Xid."""

    device: str
    xid: int
    words: str
    pid: int = -1


@dataclass(frozen=True, slots=True)
class SizesUnlike:
    """Gloo ended the process, because a peer's message has another size.

    Attributes:
        words: The line.
        received: Bytes that the peer sent; -1: not told.
        expected: Bytes for which there was room.
    """

    words: str
    received: int = -1
    expected: int = -1


@dataclass(frozen=True, slots=True)
class Restarted:
    """torchrun starts all ranks anew: what came before is not how the job ended."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """The traceback that follows is that of a process of `mp.spawn`."""

    number: int


Said = (
    WatchdogTimeout
    | WatchdogStatus
    | WatchdogError
    | WorkerFailed
    | WorkerStopped
    | StepAborted
    | Stalled
    | StallWarning
    | BarrierTimeout
    | Crashed
    | TaskEnded
    | OutOfMemory
    | Cancelled
    | GpuFault
    | SizesUnlike
    | Restarted
    | Spawned
)
"""What a line may say."""
