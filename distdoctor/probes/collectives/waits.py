"""Records when a thread waits for a communication call to complete.

On gloo a synchronous collective returns at once from the backend; the blocking part is
`Work.wait`, called by torch's Python code, which can be replaced. Functional
collectives wait in the operator `_c10d_functional::wait_tensor`. What
DistributedDataParallel exchanges outside of backward is issued and waited for within
one function of C++ each.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from distdoctor.journal.format import RecordKind
from distdoctor.probes.collectives import interception
from distdoctor.probes.collectives.gpu_waits import WAITS
from distdoctor.probes.collectives.interception import Collectives
from distdoctor.probes.collectives.pending_calls import PendingCall, put_state
from distdoctor.probes.collectives.work_handles import watch_uses
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_META = torch._C.DispatchKey.Meta


_WAIT, _WOKE, _RAISED = (
    int(RecordKind.WAIT),
    int(RecordKind.WOKE),
    int(RecordKind.WAIT_RAISE),
)


_libraries: list[Library] = []
"""They must be kept: their kernels go with them."""


def install() -> None:
    """Wrap the functions that wait, to record when a wait begins and ends."""
    if (collectives := interception.installed()) is not None:
        _libraries.append(_watch_waits(collectives))


def _watch_waits(collectives: Collectives) -> Library:
    works, handles = collectives.works, collectives.handles
    used, queue = harmless(handles.used), harmless(WAITS.queue)
    watch_uses(handles)
    made = dist.Work.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = id(self)
        handle = handles.open.get(number)
        held = works.get(number)
        if handle is not None:
            used(self, waited=True)
        if held is not None and held[0] is self:
            pending = held[1]
        elif handle is not None and handle.reference() is self:
            pending = handle.pending  # let go here because it was complete
        else:
            return made(self, *args, **kwargs)
        put_state(_WAIT, pending)
        try:
            result = made(self, *args, **kwargs)
        except BaseException:
            put_state(_RAISED, pending)
            raise
        put_state(_WOKE, pending)
        if WAITS.watching and pending.needs_all and not pending.polled:
            queue(pending)
        works.pop(number, None)
        return result

    dist.Work.wait = wait  # type: ignore[method-assign]

    library = Library("_c10d_functional", "IMPL")
    redispatch = torch.ops._c10d_functional.wait_tensor.default.redispatch
    pointers = collectives.by_pointer

    @harmless
    def find(tensor: Any) -> PendingCall | None:
        return pointers.pop(tensor.data_ptr(), None)

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        below = keyset.remove(_BACKEND_SELECT)
        pending = None if keyset.has(_META) else find(tensor)
        if pending is None:
            return redispatch(below, tensor)
        put_state(_WAIT, pending)
        try:
            result = redispatch(below, tensor)
        except BaseException:
            put_state(_RAISED, pending)
            raise
        put_state(_WOKE, pending)
        return result

    library.impl("wait_tensor", wait_tensor, "BackendSelect", with_keyset=True)
    for owner, name in _WAITING_INSIDE:
        _watch_inside(collectives, owner, name)
    return library


_WAITING_INSIDE: tuple[tuple[Any, str], ...] = (
    (dist, "_verify_params_across_processes"),
    (dist, "_broadcast_coalesced"),
    (getattr(dist, "Reducer", None), "_rebuild_buckets"),
)
"""Functions in C++ that wait for all they issue.

Source: `verify_params_across_processes`, `broadcast_coalesced` and
`Reducer::sync_bucket_indices` in torch/csrc/distributed/c10d/reducer.cpp and comm.cpp.
"""


def _watch_inside(collectives: Collectives, owner: Any, name: str) -> None:
    """Take each call that a function issues for one that its thread waits for."""
    made = getattr(owner, name, None)
    if made is None:
        return
    inside = collectives.inside

    @functools.wraps(made)
    def issuing(*args: Any, **kwargs: Any) -> Any:
        thread = RECORDER.thread()
        issued = inside[thread] = []
        try:
            result = made(*args, **kwargs)
        except BaseException:
            for pending in issued:
                put_state(_RAISED, pending)
            raise
        finally:
            inside.pop(thread, None)
        for pending in issued:
            put_state(_WOKE, pending)
        return result

    setattr(owner, name, issuing)


PROBE = Probe(install=install)
