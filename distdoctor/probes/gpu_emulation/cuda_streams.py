"""Stands in for CUDA streams, events and graphs: all work is done at once, in order."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, NoReturn

import torch

from distdoctor.errors import NoStandIn
from distdoctor.probes.gpu_emulation.cuda_module import index_of
from distdoctor.probes.gpu_emulation.replacement import put_everywhere
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Replace the classes and functions."""
    cuda = torch.cuda
    for kind in (Stream, ExternalStream, Event):
        put_everywhere(kind.__name__, kind, cuda, cuda.streams)
    functions: dict[str, Any] = {
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
    }
    for name, function in functions.items():
        put_everywhere(name, function, cuda)
    graphs: dict[str, Any] = {
        "CUDAGraph": CUDAGraph,
        "graph": CUDAGraph,
        "make_graphed_callables": make_graphed_callables,
        "is_current_stream_capturing": lambda: False,
        "graph_pool_handle": lambda: (0, 0),
    }
    for name, function in graphs.items():
        put_everywhere(name, function, cuda, cuda.graphs)
    put_everywhere("current_stream", current_stream, torch.accelerator)
    put_everywhere("set_stream", set_stream, torch.accelerator)


class Stream:
    """Stands in for `torch.cuda.Stream`: its work is done when it is enqueued."""

    def __init__(
        self, device: Any = None, priority: int = 0, **_kwargs: object
    ) -> None:
        RECORDER.substituted("streams")
        self.device = torch.device("cuda", index_of(device))
        self.device_index = self.device.index
        self.priority = priority
        self.cuda_stream = self.stream_id = 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority."""
        return 0, -5

    def query(self) -> bool:
        """Whether all enqueued work is done."""
        return True

    def synchronize(self) -> None:
        """Wait until all enqueued work is done."""

    def wait_stream(self, stream: object) -> None:
        """Wait for the work enqueued in another stream."""

    def wait_event(self, event: object) -> None:
        """Wait for an event."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)


class ExternalStream(Stream):
    """Stands in for `torch.cuda.ExternalStream`."""

    def __init__(self, stream_ptr: int, device: Any = None, **_kwargs: object) -> None:
        super().__init__(device)
        self.cuda_stream = stream_ptr


class Event:
    """Stands in for `torch.cuda.Event`: it measures time by the wall clock."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        RECORDER.substituted("streams")
        self._at: float | None = None

    def record(self, _stream: object = None) -> None:
        """Record the present time."""
        self._at = time.perf_counter()

    def query(self) -> bool:
        """Whether the event is recorded."""
        return True

    def wait(self, stream: object = None) -> None:
        """Let a stream wait for the event."""

    def synchronize(self) -> None:
        """Wait for the event."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another."""
        if self._at is None or end_event._at is None:
            raise ValueError(
                "Both events must be recorded before calculating elapsed time."
            )
        return (end_event._at - self._at) * 1e3


class _Streams(threading.local):
    chosen: Any = None


_streams = _Streams()


def default_stream(device: Any = None) -> Stream:
    """The default stream of a device."""
    return Stream(device)


def current_stream(device: Any = None) -> Any:
    """The stream that work is enqueued in."""
    if _streams.chosen is None:
        _streams.chosen = Stream(device)
    return _streams.chosen


def set_stream(stream: Any) -> None:
    """Set the current stream."""
    if stream is not None:
        _streams.chosen = stream


class StreamContext:
    """Context manager that stands in for `torch.cuda.stream`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = _streams.chosen
        set_stream(self.stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _streams.chosen = self._before


class CUDAGraph:
    """Stands in for `torch.cuda.CUDAGraph`, and refuses to be constructed."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Refuse.

        Raises:
            NoStandIn: Always.
        """
        raise NoStandIn(
            "a CUDA graph cannot be captured without a GPU, and distdoctor has put the "
            "job on the CPU: switch graphs off for the check, or check with "
            "`--device cuda` on a machine with GPUs"
        )


def make_graphed_callables(callables: Any, *_args: Any, **_kwargs: Any) -> Any:
    """The callables as they are: without a graph they compute the same."""
    RECORDER.substituted("streams")
    return callables
