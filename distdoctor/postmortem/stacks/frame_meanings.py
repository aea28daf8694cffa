"""What the functions of a stack tell: the call in which a thread is, or what it does.

It knows functions of torch, Horovod and Python by name and file, and native ones where
a stack has them. Nothing is known of how often a call was made before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.model.operations import CODE_OF, OPERATIONS, Waits
from distdoctor.postmortem.stacks.thread_stacks import StackLine, ThreadStack, users


@dataclass(frozen=True, slots=True)
class InCall:
    """A thread is inside a call for communication.

    Attributes:
        op: The operation as users call it, as in `OPERATIONS`; empty: not known.
        words: What it is in, for readers.
        peer: The global rank of a message's other side; None: there is none, or it is
            not known.
        tag: Of a message.
        is_of_default: It is surely on the default group: its caller passed no group.
        number: That the library gave the call and would give no other, such as
            Horovod's handle; empty: none is known.
    """

    op: str
    words: str
    peer: int | None = None
    tag: int = 0
    number: str = ""
    is_of_default: bool = False


_C10D = re.compile(r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)")
_DDP = re.compile(r"(^|/)torch/(nn/parallel/distributed|distributed/utils)\.py$")
_RENDEZVOUS = re.compile(
    r"(^|/)torch/distributed/(rendezvous|elastic/rendezvous/\w+)\.py$"
)
_HOROVOD = re.compile(r"(^|/)horovod/(torch|tensorflow|common|mxnet|keras|_keras)/")
_LOGGER = re.compile(r"(^|/)torch/distributed/c10d_logger\.py$")
_AUTOGRAD = re.compile(r"(^|/)torch/autograd/graph\.py$")
_CUDA = re.compile(r"(^|/)torch/cuda/(__init__|streams)\.py$")

_SETTING_UP = {"init_process_group": "init_process_group", "new_group": "new_group"}
_SETTING_UP |= {"_new_group_with_tag": "new_group", "new_subgroups": "new_group"}

_OTHER_NAMES = {
    "all_gather_tensor": "all_gather_into_tensor",
    "all_gather_tensor_autograd": "all_gather_into_tensor",
    "irecv": "recv",
    "isend": "send",
}

_DDP_CALLS = {
    "_verify_param_shape_across_processes": "all_gather",
    "_verify_params_across_processes": "all_gather",
    "_sync_module_states": "broadcast",
    "_sync_params_and_buffers": "broadcast",
    "_distributed_broadcast_coalesced": "broadcast",
    "_sync_module_buffers": "broadcast",
    "_default_broadcast_coalesced": "broadcast",
}

_HOROVOD_CALLS = {
    "allreduce": "all_reduce",
    "grouped_allreduce": "all_reduce",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "barrier": "barrier",
    "join": "barrier",
}

_NATIVE = (
    (re.compile(r"c10d::Reducer::"), "all_reduce", "the all_reduce of DDP"),
    (
        re.compile(r"c10d::\w*Store::|c10d::detail::tcputil"),
        "store_wait",
        "a request to the store",
    ),
    (re.compile(r"c10d::\w*Work\w*::wait|c10d::Work::"), "", "wait() of a handle"),
    (
        re.compile(r"cu(da)?(Stream|Event|Device|Ctx)Synchronize|hip\w+Synchronize"),
        "",
        "a wait for its GPU",
    ),
    (re.compile(r"^nccl[A-Z]|ncclResult|ncclComm"), "", "a call of NCCL"),
    (re.compile(r"^P?MPI_(\w+)"), "", "a call of MPI"),
)
"""Native functions, the operation that they stand for if it is sure, and words."""


def call_of(thread: ThreadStack) -> InCall | None:
    """The call for communication in which a thread is.

    Args:
        thread: Its stack.

    Returns:
        None if it is in no function that is known to communicate.
    """
    lines = thread.lines
    for line in reversed(lines):  # the outermost: what sets up makes other calls
        if _C10D.search(line.file) and line.function in _SETTING_UP:
            op = _SETTING_UP[line.function]
            return InCall(op, op)
    for at, line in enumerate(lines):
        if not _is_known(line):
            if _is_users(lines, at):
                break
            continue
        if (found := _call_at(thread, at)) is not None:
            return found
    return _native_call(lines)


def _is_known(line: StackLine) -> bool:
    return "torch" in line.file or "horovod" in line.file


def _is_users(lines: Sequence[StackLine], at: int) -> bool:
    return any(place == at for place, _ in users(lines[: at + 1]))


def _call_at(thread: ThreadStack, at: int) -> InCall | None:
    line = thread.lines[at]
    name = line.function.rpartition(".")[2]
    if _C10D.search(line.file):
        op = _OTHER_NAMES.get(name, name)
        if op in CODE_OF and not OPERATIONS[CODE_OF[op]].sets_up:
            return _operation(thread, at, op)
        if name == "wait_tensor":
            return InCall("", "wait_tensor")
        if name == "_store_based_barrier":
            return InCall("barrier", "the barrier through the store")
    elif _DDP.search(line.file) and name in _DDP_CALLS:
        return InCall(_DDP_CALLS[name], f"{name} of DDP")
    elif _RENDEZVOUS.search(line.file):
        return InCall("init_process_group", "the rendezvous")
    elif _HOROVOD.search(line.file):
        return _of_horovod(thread, at)
    elif _CUDA.search(line.file) and name == "synchronize":
        return InCall("", "a wait for its GPU")
    return None


def _operation(thread: ThreadStack, at: int, op: str) -> InCall:
    """A call of torch; of a message, the other side where the stack tells it."""
    if not OPERATIONS[CODE_OF[op]].is_point_to_point:
        return InCall(op, op, is_of_default=_passes_no_group(thread, at))
    side = "dst" if OPERATIONS[CODE_OF[op]].waits is Waits.RECEIVER else "src"
    reported = thread.variable(at, side)
    tag = thread.variable(at, "tag")
    in_group = thread.variable(at, f"group_{side}")
    if side == "src" and reported == "None" and in_group in {"", "None"}:
        return InCall("recv_any", "recv from any rank")
    peer = (
        int(reported)
        if reported.isascii() and reported.isdigit() and len(reported) < 8
        else None
    )
    words = op if peer is None else f"{op}({side}={peer})"
    number = int(tag) if tag.isascii() and tag.isdigit() and len(tag) < 9 else 0
    return InCall(op, words, peer, number)


def _passes_no_group(thread: ThreadStack, at: int) -> bool:
    """Whether a function of torch was surely called without a group, for its result.

    The function itself puts the default group in place of None; what it was given is
    seen in torch's decorator around it, unless its text was cut.
    """
    if at + 1 >= len(thread.lines) or thread.variable(at, "async_op") == "True":
        return False
    around = thread.lines[at + 1]
    if not _LOGGER.search(around.file) or not around.function.endswith("wrapper"):
        return False
    args = thread.variable(at + 1, "args")
    options = thread.variable(at + 1, "kwargs")
    if not (args.startswith("(") and args.endswith(")")):
        return False
    if not (options.startswith("{") and options.endswith("}")):
        return False
    given = args + options
    return not any(word in given for word in ("...", "Group", "group"))


def _of_horovod(thread: ThreadStack, at: int) -> InCall | None:
    """A call of Horovod; its handle is another for each call."""
    name = thread.lines[at].function.rpartition(".")[2]
    handle = thread.variable(at, "handle")
    number = handle if handle.isascii() and handle.isdigit() else ""
    if name in _HOROVOD_CALLS:
        return InCall(_HOROVOD_CALLS[name], name, number=number)
    if name != "synchronize":
        return None
    for line in thread.lines[at + 1 :]:
        outer = line.function.rpartition(".")[2]
        if not _HOROVOD.search(line.file):
            break
        if outer in _HOROVOD_CALLS:
            return InCall(_HOROVOD_CALLS[outer], outer, number=number)
        if outer in {"step", "_synchronize"}:
            return InCall("all_reduce", "the allreduce of gradients", number=number)
    return InCall("", "synchronize", number=number)


def _native_call(lines: Sequence[StackLine]) -> InCall | None:
    """What native functions tell, up to the innermost line of Python."""
    for line in lines:
        if line.line:
            return None
        for pattern, op, words in _NATIVE:
            if pattern.search(line.function):
                return InCall(op, words)
    return None


def in_backward(thread: ThreadStack) -> bool:
    """Whether the innermost line of Python waits for the engine of autograd.

    Args:
        thread: A stack.
    """
    for line in thread.lines:
        if line.line:
            return bool(_AUTOGRAD.search(line.file)) and "backward" in line.function
    return False


_DOING = (
    (r"(^|/)(pdb|bdb|ipdb/\w+|IPython/.*|cmd)\.py$", r".*", "in a debugger"),
    (
        r"(^|/)torch/utils/data/dataloader\.py$",
        r".*",
        "waiting for a DataLoader's batch",
    ),
    (r"(^|/)(queue|multiprocessing/queues)\.py$", r"get|put", "waiting for a queue"),
    (r"(^|/)threading\.py$", r"acquire|__enter__", "waiting for a lock"),
    (
        r"(^|/)(filelock|fasteners|portalocker)/\w+\.py$",
        r"_?acquire|__enter__|lock",
        "waiting for the lock of a file",
    ),
    (
        r"(^|/)threading\.py$",
        r"wait.*|.*join|_wait_for_tstate_lock",
        "waiting for a thread",
    ),
    (
        r"(^|/)(subprocess|multiprocessing/popen_\w+)\.py$",
        r".*",
        "waiting for a process",
    ),
    (r"(^|/)multiprocessing/(connection|process)\.py$", r".*", "waiting for a process"),
    (
        r"(^|/)(socket|ssl|http/client|urllib3/.*|requests/.*)\.py$",
        r".*",
        "on the network",
    ),
    (r"(^|/)selectors\.py$", r".*", "waiting for a socket"),
    (r"(^|/)torch/serialization\.py$", r".*", "saving or loading a file"),
)
_DOING_PATTERNS = tuple((re.compile(f), re.compile(n), w) for f, n, w in _DOING)


def doing(lines: Sequence[StackLine]) -> str:
    """What a thread does in Python's own functions, in words; empty: not known.

    Args:
        lines: Innermost first.
    """
    for at, line in enumerate(lines):
        if _is_users(lines, at):
            return ""
        for file, name, words in _DOING_PATTERNS:
            if file.search(line.file) and name.fullmatch(
                line.function.rpartition(".")[2]
            ):
                return words
    return ""


_SYSTEM_CALL = re.compile(
    r"_*(?:libc_|GI_+|GI___libc_)*(read|pread64|readv|write|pwrite64|poll|ppoll|select|"
    r"pselect|epoll_wait|recv|recvfrom|recvmsg|accept|connect|flock|fcntl|open|openat|"
    r"wait4|waitpid|nanosleep|clock_nanosleep)(?:64)?(?:@.*)?"
)


def system_call(lines: Sequence[StackLine]) -> str:
    """The call of the kernel in which a stack ends, as "in read()"; empty: in none.

    Args:
        lines: Innermost first.
    """
    for line in lines[:3]:
        if line.line:
            return ""
        if match := _SYSTEM_CALL.fullmatch(line.function):
            return f"in {match[1]}()"
    return ""


def may_take_long(words: str) -> bool:
    """Whether what a rank does, in the words of `doing`, is done for long by many.

    Args:
        words: What it does.
    """
    return words in {"saving or loading a file", "waiting for a DataLoader's batch"}


def takes_lock(lines: Sequence[StackLine]) -> bool:
    """Whether a thread's innermost line of Python takes a lock of `threading`.

    Args:
        lines: Innermost first.
    """
    return doing(lines) == "waiting for a lock"
