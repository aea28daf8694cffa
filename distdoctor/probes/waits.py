"""Sees when a thread waits for a communication operation to complete.

On gloo a synchronous collective returns at once from the backend; the blocking part is
`Work.wait`, called by torch's Python code, which can be replaced. Functional
collectives wait in the operator `_c10d_functional::wait_tensor`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from distdoctor.journal import Kind
from distdoctor.probes.collectives import Collectives, Pending
from distdoctor.probes.harmless import harmless, lost
from distdoctor.probes.recorder import RECORDER

_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_META = torch._C.DispatchKey.Meta


_WAIT, _WOKE, _RAISED = int(Kind.WAIT), int(Kind.WOKE), int(Kind.WAIT_RAISE)


def _put(kind: int, pending: Pending) -> None:
    try:
        if (writer := RECORDER.writer) is not None:
            thread = RECORDER.thread()
            writer.put(kind, thread, pending.call, pending.ordinal, pending.group)
    except Exception as error:  # noqa: BLE001 - written out: a guard costs as much
        lost("waiting", error)


def watch_waits(collectives: Collectives) -> Library:
    """From now on, write when a thread starts and ends to wait.

    Returns:
        The library of the kernel; it must be kept.
    """
    works = collectives.works
    made = dist.Work.wait

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        held = works.get(id(self))
        if held is None or held[0] is not self:
            return made(self, *args, **kwargs)
        pending = held[1]
        _put(_WAIT, pending)
        try:
            result = made(self, *args, **kwargs)
        except BaseException:
            _put(_RAISED, pending)
            raise
        _put(_WOKE, pending)
        works.pop(id(self), None)
        return result

    dist.Work.wait = wait  # type: ignore[method-assign]

    library = Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
    redispatch = torch.ops._c10d_functional.wait_tensor.default.redispatch
    pointers = collectives.by_pointer

    @harmless
    def find(tensor: Any) -> Pending | None:
        return pointers.pop(tensor.data_ptr(), None)

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        below = keyset.remove(_BACKEND_SELECT)
        pending = None if keyset.has(_META) else find(tensor)
        if pending is None:
            return redispatch(below, tensor)
        _put(_WAIT, pending)
        try:
            result = redispatch(below, tensor)
        except BaseException:
            _put(_RAISED, pending)
            raise
        _put(_WOKE, pending)
        return result

    library.impl(  # type: ignore[no-untyped-call]
        "wait_tensor", wait_tensor, "BackendSelect", with_keyset=True
    )
    return library
