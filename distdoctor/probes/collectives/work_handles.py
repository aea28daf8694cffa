"""Follows the Work handles of asynchronous calls that the user's own code issued.

torch itself waits for what it issues (DistributedDataParallel, FSDP, functional
collectives, libraries); a handle that the user was given is the user's to wait for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import c10d_logger, distributed_c10d

from distdoctor.journal.format import TOUCHED_BY_LINE, TOUCHED_BY_STEP, RecordKind
from distdoctor.model.observations.collectives import Awaited
from distdoctor.probes import patching
from distdoctor.probes.call_sites import call_site, frame_above, is_users
from distdoctor.probes.collectives.call_paths import Way, site, texts, way_here
from distdoctor.probes.collectives.pending_calls import PendingCall
from distdoctor.probes.gpu_emulation import nccl_refusals
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.true_steps import before_steps
from distdoctor.probes.recorder import RECORDER

_PASSED_THROUGH = frozenset(
    {
        distributed_c10d.__file__,
        c10d_logger.__file__,
        patching.__file__,
        nccl_refusals.__file__,
    }
)
_HANDLES_ONLY = frozenset({"isend", "irecv"})

_MOST_TENSORS = 64  # to compare more would be felt

_MOST_PAIRS = 256  # of ways, that are told; programs have a few

READ_BY = ("tensors", "input_tensors", "inputs", "input_tensor", "input")
"""What operators call the tensors they read (and, some of them, write)."""

_OTHER_USES = (
    "block_current_stream",
    "exception",
    "get_future",
    "get_future_result",
    "is_completed",
    "is_success",
    "result",
    "synchronize",
)
"""What a handle offers besides `wait`; after any of it, the user knows what he does."""


class Handle:
    """The Work handle of an asynchronous call that the user's own line issued.

    Attributes:
        reference: A weak reference to the Work.
        pending: The call.
        version: Sum of the version counters of its input tensors, when issued.
        reported: Whether a missing wait was already recorded.
        thread: The thread that issued it.
        way: Its call path; () if that is too long to be recorded.
    """

    __slots__ = ("pending", "reference", "reported", "thread", "version", "way")

    def __init__(
        self, reference: weakref.ref[Any], pending: PendingCall, thread: int
    ) -> None:
        self.reference = reference
        self.pending = pending
        self.thread = thread
        self.way = way_here(2)
        self.version = _version(pending.watched or ())
        self.reported = False

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The input tensors whose version counters are watched for changes."""
        return self.pending.watched or ()


class Handles:
    """The Work handles that are not waited for yet; one object per process.

    Attributes:
        open: By the identity of the Work. It is held weakly: a Work keeps its tensors
            alive, and what the user lets go must go.
    """

    def __init__(self) -> None:
        self.open: dict[int, Handle] = {}
        # Until a thread's next call: pybind gives the user this object only if it
        # still lives when torch hands it over.
        self._fresh: dict[int, Any] = {}
        self._reported: set[tuple[Way, Way]] = set()

    def hold(self, work: Any, pending: PendingCall, thread: int) -> None:
        """Start to follow a handle that is about to be returned to the user."""
        number, handles = id(work), self.open

        def dropped(reference: Any) -> None:
            held = handles.get(number)
            if held is not None and held.reference is reference:
                del handles[number]

        handles[number] = Handle(weakref.ref(work, dropped), pending, thread)
        self._fresh[thread] = work

    def reset(self) -> None:
        """Forget all handles: their process groups are gone."""
        self.open.clear()
        self._fresh.clear()
        self._reported.clear()

    def used(self, work: Any, *, waited: bool) -> None:
        """Record the first use of a handle."""
        handle = self.open.get(id(work))
        if handle is None or handle.reference() is not work:
            return
        del self.open[id(work)]
        writer = RECORDER.writer
        if writer is None:
            return
        thread = RECORDER.thread()
        if not waited:
            writer.put(RecordKind.HANDED, thread, handle.pending.call)
            return
        if not handle.reported and _version(handle.tensors) != handle.version:
            _touched(handle, TOUCHED_BY_LINE)
        if handle.thread == thread:
            self._awaited(handle)

    def _awaited(self, handle: Handle) -> None:
        """Note by which ways a call was issued and waited for, each pair once."""
        issued, waited = handle.way, way_here(2)
        if not issued or not waited or (issued, waited) in self._reported:
            return
        if len(self._reported) < _MOST_PAIRS:
            self._reported.add((issued, waited))
            observation = Awaited(issued=texts(issued), waited=texts(waited))
            RECORDER.observe(observation, site(issued))

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Record gradients still in transit that an optimizer is about to read.

        They are recognised by their memory, as the tensors that were given to a call.
        """
        handles = [handle for handle in self.open.values() if not handle.reported]
        if not handles:
            return
        gradients = {
            parameter.grad.data_ptr()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.layout is torch.strided
        }
        for handle in handles:
            if any(t.data_ptr() in gradients for t in handle.tensors):
                _touched(handle, TOUCHED_BY_STEP)


def watch_uses(handles: Handles) -> None:
    """Wrap the methods of Work, to note how handles are used."""
    for name in _OTHER_USES:
        made = getattr(dist.Work, name, None)
        if made is not None:
            setattr(dist.Work, name, _noting(made, handles))

    @harmless
    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if handles.open:
            handles.stepping(optimizer)

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        before(optimizer, args, kwargs)

    before_steps(stepping)


def _noting(made: Callable[..., Any], handles: Handles) -> Callable[..., Any]:
    note = harmless(handles.used)

    def use(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in handles.open:
            note(self, waited=False)
        return made(self, *args, **kwargs)

    return use


def _touched(handle: Handle, how: int) -> None:
    handle.reported = True
    assert RECORDER.writer is not None
    RECORDER.writer.put(
        RecordKind.TOUCHED,
        RECORDER.thread(),
        handle.pending.call,
        flags=how,
        site=RECORDER.intern(call_site(1)),
    )


def is_users_own(depth: int, *, point_to_point: bool) -> bool:
    """Whether a call's handle is returned to the user's own code.

    It does if nothing but torch's plain functions stands between that line and the
    operator: what torch, or a library, issues is waited for there.

    Args:
        depth: Frames between the caller and the kernel's caller.
        point_to_point: The call is a send or receive; only some give a handle.
    """
    frame = frame_above(depth + 1)
    gives = not point_to_point
    while frame is not None:
        code = frame.f_code
        if code.co_filename not in _PASSED_THROUGH:
            # `deprecated` of typing_extensions wraps some of the functions.
            if not code.co_filename.endswith("typing_extensions.py"):
                return gives and is_users(code.co_filename)
        elif code.co_name == "batch_isend_irecv":
            return False  # NCCL gives one handle for all of them
        elif code.co_name in _HANDLES_ONLY:
            gives = True
        frame = frame.f_back
    return False


def watchable(argument: Any, on_host: bool) -> tuple[torch.Tensor, ...]:
    """The tensors of an argument whose version counters reveal changes.

    A counter is shared by all views of one memory, so a tensor that is only a part of
    its memory tells nothing. The collectives of gloo on the host and of NCCL leave the
    counters of what they read alone; gloo on a device copies back by itself.
    Source: measured with torch 2.13; torch, csrc/distributed/c10d/ProcessGroupGloo.cpp.

    Args:
        argument: A tensor, or lists of tensors.
        on_host: Only tensors on the host tell.
    """
    tensors = tuple(_flat(argument))
    if len(tensors) > _MOST_TENSORS:
        return ()
    return tuple(
        tensor
        for tensor in tensors
        if tensor.layout is torch.strided
        and not tensor.is_inference()
        and (tensor.is_cpu or not on_host)
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _flat(argument: Any) -> Iterator[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _flat(part)


def _version(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor._version for tensor in tensors)
