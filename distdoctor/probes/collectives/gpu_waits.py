"""Records when a thread waits for its GPU, and so for calls of NCCL.

On NCCL a collective returns, and a wait for it, once the GPU has been told that its
stream is to wait. The thread itself waits later, where it asks for a value
(`loss.item()`) or for the GPU (`torch.cuda.synchronize()`). A stream works in order:
who waits for the stream waits for the last collective that the stream waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.library import Library

from distdoctor.journal.format import RecordKind
from distdoctor.probes import gpu_emulation
from distdoctor.probes.collectives.pending_calls import PendingCall, put_state
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_WAIT, _WOKE = int(RecordKind.WAIT), int(RecordKind.WOKE)

_AUTOGRAD = torch._C.DispatchKey.AutogradCUDA
"""Tensors on other devices do not pass there, and cost nothing."""

_MOST_STREAMS = 64


class GpuWaits:
    """What the streams of this process wait for; one object per process.

    Attributes:
        watching: There are GPUs; else nothing is kept.
        queued: By stream, the last collective that it waits for.
    """

    def __init__(self) -> None:
        self.watching = False
        self.queued: dict[Hashable, PendingCall] = {}
        self._last: PendingCall | None = None

    def queue(self, pending: PendingCall) -> None:
        """Note that the current stream waits for a call that all members must make."""
        if not self.watching or not torch.cuda.is_initialized():
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if len(self.queued) >= _MOST_STREAMS:
            self.queued.clear()
        self.queued[_stream()] = self._last = pending

    def begin(self, *, all_streams: bool = False) -> PendingCall | None:
        """Note that this thread is about to wait for the current stream, or for all.

        Returns:
            The call that it waits for; None if that is not known, as where another
            stream was the last to wait for one.
        """
        pending = self._last
        if pending is None or RECORDER.writer is None:
            return None
        if not all_streams and self.queued.get(_stream()) is not pending:
            return None
        put_state(_WAIT, pending)
        return pending

    def forget(self) -> None:
        """A call was made, and what waits for it is not known (yet)."""
        self._last = None

    def reset(self) -> None:
        """Forget all calls: their groups are gone."""
        self.queued.clear()
        self._last = None


def _stream() -> Hashable:
    current: Hashable = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
    return current


WAITS = GpuWaits()

_libraries: list[Library] = []
"""They must be kept: their kernels go with them."""


def install() -> None:
    """See where values, or all streams, are waited for, if there are GPUs."""
    if gpu_emulation.is_in_place() or not torch.cuda.device_count():
        return
    library = Library("aten", "IMPL")
    redispatch = torch.ops.aten._local_scalar_dense.default.redispatch

    def value(keyset: Any, tensor: Any) -> Any:
        return _watched(lambda: redispatch(keyset.remove(_AUTOGRAD), tensor))

    library.impl("_local_scalar_dense", value, "AutogradCUDA", with_keyset=True)
    _libraries.append(library)
    replace(torch.cuda, "synchronize", _synchronize)
    _name_threads()
    WAITS.watching = True


def _synchronize(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _watched(lambda: made(*args, **kwargs), all_streams=True)


def _name_threads() -> None:
    """Take what autograd's own threads do for what the thread does that waits for them.

    For each GPU it has a thread, which never ends.
    """
    autograd: Any = torch.autograd
    made, passes = autograd._engine_run_backward, RECORDER.passes

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        thread = RECORDER.thread()
        passes.append(thread)
        try:
            return made(*args, **kwargs)
        finally:
            passes.remove(thread)

    autograd._engine_run_backward = run_backward


def _watched(wait: Callable[[], Any], *, all_streams: bool = False) -> Any:
    pending = _begin(all_streams=all_streams)
    try:
        return wait()
    finally:
        if pending is not None:
            _woke(pending)


_begin = harmless(WAITS.begin)


@harmless
def _woke(pending: PendingCall) -> None:
    put_state(_WOKE, pending)


PROBE = Probe(install=install, reset=WAITS.reset)
