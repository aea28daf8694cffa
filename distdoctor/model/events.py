"""The events that a run is made of.

An event is one thing that one rank did, as a probe saw it. Events are values: frozen,
comparable, and free of torch, so that a check can be tried on a drawing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TypeAlias

from distdoctor.model.values import value

MOST_RANKS = 1 << 17
"""No job has more: where a file tells of a larger number, it is none of ranks.

Every rank of a job takes memory and time here, even if nothing is known of it.
"""

WORLD = "world"
"""Name of the group that holds every rank."""

SETUP = "set-up"
"""Name of the group on which ranks meet to join the job and to make groups."""

DATA_PARALLEL = "DataParallel"
"""Stands for the backend where the only rank is a process that trains by that."""

RAY = "ray_train"
"""Name of the group of all workers of Ray Train, as they meet at its barrier."""

STORE = "store"
"""Name of the group whose members share the store."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of the user's own source; never one of torch's or ours."""

    file: str
    line: int  # 1-based
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """What is known of a tensor that took part in a call."""

    shape: tuple[int, ...]
    dtype: str = "float32"  # torch's name without the prefix

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class State(IntEnum):
    """How far a call had come when its rank's journal ends."""

    INSIDE = 0  # entered; torch has not given back control
    ISSUED = 1  # the backend has it; nobody waited for it (yet)
    WAITING = 2  # a thread is blocked until it completes
    DONE = 3  # waited for, and complete
    RAISED = 4  # ended with an exception
    REFUSED = 5  # stopped by the board before it was issued


BLOCKED = (State.INSIDE, State.WAITING, State.REFUSED)
"""States in which the calling thread cannot go on by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A rank called a communication operation."""

    rank: int  # global rank, 0-based
    op: str  # name of the function users call, e.g. "all_reduce"
    group: str = WORLD  # `Group.name`
    ordinal: int = 0  # 1-based among the rank's collectives on the group; 0: P2P
    tensors: tuple[Tensor, ...] = ()
    reduce_op: str | None = None  # None: the operation has none, or it was not read
    root: int | None = None  # group rank
    peer: int | None = None  # group rank; None for collectives and any source
    tag: int = 0
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # sent, received
    names: tuple[str, ...] = ()  # of set-up calls: ranks, an address, keys
    asynchronous: bool = False
    state: State = State.DONE
    place: Place | None = None
    callers: tuple[Place, ...] = ()  # by which it came to its place, innermost first
    thread: int = 0  # 0: the rank's first; otherwise any number
    failing: bool = False  # called while an exception was on its way up
    entered_ms: int = 0  # of a drawing's clock; what was seen is in `Run.calls`
    batched: bool = False  # a message of `batch_isend_irecv`
    layer: str = ""  # the part of torch that the user called; see model.layers
    unused: bool = False  # the user's line got its handle, and did nothing with it

    def __str__(self) -> str:
        tensors = "+".join(map(str, self.tensors))
        options = [tensors] if tensors else []
        if self.reduce_op not in {None, "sum"}:
            options.append(f"op={self.reduce_op}")
        if self.root is not None:
            options.append(f"root={self.root}")
        if self.peer is not None:
            options.append(f"peer={self.peer}")
        options += self.names
        return f"{self.op}({', '.join(options)})" if options else self.op


@value(frozen=True, slots=True, kw_only=True)
class Started:
    """The rank joined (or tried to join) a job: `init_process_group` was called."""

    rank: int = -1
    world_size: int
    joined: bool = True
    backend: str = ""
    torch: str = ""  # release
    device: str = "cpu"
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class BadAddress:
    """The rank was to meet the others where that cannot work, or could not."""

    rank: int = -1
    fault: str  # a key of ADDRESS_FAULTS
    address: str  # "localhost:12355"; of a network interface, its name
    given: str = ""  # where the launcher had sent it instead
    mended: bool = True  # the probes led it to where it can meet them
    place: Place | None = None  # the line that wrote the address, or joined


ADDRESS_FAULTS = {
    "overridden": "the launcher's store is elsewhere",
    "taken": "another process of the job has the port",
    "used": "the port was in use when the store was to be opened",
    "occupied": "a program that is no part of the job has the port",
    "elsewhere": "the address is no address of this machine",
    "interface": "this machine has no such network interface",
}
"""What can be wrong with an address."""


@value(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """The rank wrapped a model for data parallelism."""

    rank: int = -1
    how: str  # "ddp", "fsdp" or "deepspeed"
    parameters: tuple[str, ...] = ()  # qualified names, in order of registration
    ranks: tuple[int, ...] = ()  # that share the model; none: all, or nobody knows
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Unreduced:
    """A backward pass ended, and DDP waits for gradients that did not come."""

    rank: int = -1
    parameters: tuple[str, ...]  # those without a gradient, as in `Wrapped`
    model: int = 0  # number among the wrapped ones; told by a rank, 0 in a run
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Reduced:
    """DDP got what it waited for after all; takes back an `Unreduced` of the model.

    It is told by a rank and never part of a run.
    """

    rank: int = -1
    model: int = 0
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """A communication operation was called on a tensor without memory, in vain."""

    rank: int = -1
    device: str = "meta"
    op: str = ""  # name of the function users call
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Batch:
    """A DataLoader's iterator ended; `count` batches had come from it."""

    rank: int
    count: int
    ended: bool = True  # False: it is still at its `count`-th batch
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Shortened:
    """From here on, passes over a DataLoader are shorter, so that the job ends in time.

    distdoctor did that, on all ranks alike.
    """

    rank: int = -1
    kept: int  # batches that a pass gives from now on
    length: int | None = None  # that it would have given; None: nobody knows
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception left the rank's own code."""

    rank: int = -1
    error: str  # "KeyError"
    message: str = ""
    place: Place | None = None  # innermost line of the user's source
    fatal: bool = True  # False: seen on its way up, with the process still alive
    caught: Place | None = None  # where it went through the function that handles it
    secondary: bool = False  # raised by a communication call: a peer's fault
    spawned: int = -1  # number in `torch.multiprocessing.spawn`; -1: none


@value(frozen=True, slots=True, kw_only=True)
class Left:
    """The rank called `destroy_process_group` for the whole world."""

    rank: int = -1
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Quit:
    """The rank's own code asked its process to end; `sys.exit` may yet be caught."""

    rank: int = -1
    how: str  # "sys.exit", "exit", "os._exit"
    status: int  # as the shell counts; that of a text is 1
    place: Place | None = None


@value(frozen=True, slots=True, kw_only=True)
class Ended:
    """The rank's process ended."""

    rank: int
    status: int | None  # as the shell counts: 128 + n is signal n; None: not known
    orderly: bool = True  # the interpreter ran its exit handlers
    stopped: bool = False  # distdoctor or the launcher ended it
    place: Place | None = None  # the line of its parent that learnt of it


@value(frozen=True, slots=True, kw_only=True)
class ThreadEnded:
    """A thread of the rank that had communicated ended."""

    rank: int
    thread: int
    place: None = None


@value(frozen=True, slots=True, kw_only=True)
class Locked:
    """A thread of the rank was seen, again and again, waiting for a lock."""

    rank: int
    place: Place
    seconds: float  # from the first look to the last


@value(frozen=True, slots=True, kw_only=True)
class Dead:
    """The rank's main thread held the interpreter's lock for long, and did nothing."""

    rank: int
    seconds: float  # from the first look to the last
    place: Place | None = None  # the innermost line of the user's source


@value(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Each thread of the rank's process was seen waiting for another of them for long.

    For a lock, a queue or a thread's end, and without a limit of time.
    """

    rank: int
    place: Place  # the innermost line of the user's source
    seconds: float  # from the first look to the last


@value(frozen=True, slots=True, kw_only=True)
class Touched:
    """The tensor of an asynchronous call was used before the call was waited for."""

    rank: int
    issued: Place | None  # the call's line
    stepped: bool = False  # an optimizer's step read it; else it was changed in place
    place: Place | None = None  # the wait behind the change, or the step


@value(frozen=True, slots=True, kw_only=True)
class Busy:
    """The rank's main thread was seen in user code, again and again, moving nowhere."""

    rank: int
    place: Place
    seconds: float  # from the first look to the last
    looks: int = 10
    cpu: float = 0.0  # share of one core it used meanwhile
    doing: str = ""  # what it was seen to do there, in words; "": not known


@value(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a rank was seen to do with data, weights, random state and files.

    Its kinds are in `model.observations`. Their fields are numbers, texts, truth
    values, or tuples of one of these, and have defaults: so each of them can be written
    down, read back and drawn without a line of code of its own. A truth value's default
    is False.
    """

    rank: int = -1  # filled in where it is read
    place: Place | None = None


Life: TypeAlias = (
    Started
    | BadAddress
    | Wrapped
    | Unreduced
    | Reduced
    | Misplaced
    | Shortened
    | Failure
    | Left
    | Quit
)
"""What a rank tells of its life, beside calls and observations."""

Event: TypeAlias = (
    Call
    | Started
    | BadAddress
    | Wrapped
    | Unreduced
    | Misplaced
    | Batch
    | Shortened
    | Failure
    | Left
    | Quit
    | Ended
    | ThreadEnded
    | Dead
    | Stranded
    | Touched
    | Locked
    | Busy
    | Observation
)
