"""A trace file of torch.profiler: what stands at its head, and its events as a stream.

Kineto writes Chrome's trace format (`libkineto/src/output_json.cpp`, pytorch/kineto):
an object with metadata, and `traceEvents`, an array of events with times in
microseconds. torch.profiler adds `distributedInfo` once there is a process group. Newer
files count times from `baseTimeNanoseconds`, which stands at the head or at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import msgspec

from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem.trace_blocks import SEAM, blocks

_LONGEST_HEAD = 16 << 20
_EVENTS = re.compile(rb'"traceEvents"\s{0,100}:\s{0,100}\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s{0,100}:\s{0,100}(\d{1,19})(?!\d)')
_MOST_BRACKETS = 1000
_NEAR = 200
_CLOSE = (b",", b"}")
_AT_ONCE = 1 << 16
_LATEST_US, _LONGEST_US = 2e15, 1e12  # from 1970, to 2033; and eleven days
_LATEST_NS = 1 << 61


class ProfiledEvent(msgspec.Struct, gc=False):
    """One event; what is of no use here is not kept.

    Attributes:
        ph: Chrome's letter: X is an event with a duration.
        cat: Its kind, such as "kernel" or "cpu_op".
        name: Of the kernel, operator or annotation.
        ts: Its beginning in microseconds.
        dur: Its duration in microseconds.
        pid: The device, of kernels; the process, of others.
        args: What else is told.
    """

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Any = None
    args: Any = None


class TracedGroup(NamedTuple):
    """A process group, as a trace names it.

    Attributes:
        name: Of the group; "": not told.
        among: Its ranks as a text, which may be cut short.
        size: How many they are.
    """

    name: str = ""
    among: str = ""
    size: int = 0


@dataclass(slots=True)
class TraceHead:
    """What a trace says of its process.

    Attributes:
        rank: Its rank; -1: not told.
        world_size: Of the job; 0: not told.
        backend: Of the default group, such as "nccl".
        groups: Those that it is in.
        has_devices: The profiler saw GPUs in the machine.
        base_ns: From where times count, since 1970.
    """

    rank: int = -1
    world_size: int = 0
    backend: str = ""
    groups: tuple[TracedGroup, ...] = ()
    has_devices: bool = False
    base_ns: int = 0


@dataclass(slots=True)
class StreamState:
    """How the reading of a file went.

    Attributes:
        events: How many could be read.
        lost: How many could not.
        is_closed: Its list of events has an end.
        base_ns: From where times count, if that stands at the end.
    """

    events: int = 0
    lost: int = 0
    is_closed: bool = False
    base_ns: int = 0


def read_head(file: IO[bytes]) -> tuple[TraceHead, bytes]:
    """Read up to where the events begin.

    Args:
        file: Open for reading, at its beginning.

    Returns:
        What the head says, and what was read of the events already.

    Raises:
        ValueError: It is no trace, or its head is damaged.
        OSError: It cannot be read.
        EOFError: What it is packed with ends too early.
    """
    text = b""
    while len(text) < _LONGEST_HEAD and (more := file.read(_AT_ONCE)):
        begin = max(0, len(text) - 256)  # where the key may have begun
        text += more
        if match := _EVENTS.search(text, begin):
            return _head(text[: match.end()]), text[match.end() :]
    raise ValueError("there is no list of events (traceEvents) in it")


def _head(text: bytes) -> TraceHead:
    try:
        top = msgspec.json.decode(text + b"]}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its head is damaged: {error}") from error
    head = TraceHead(has_devices=bool(top.get("deviceProperties")))
    head.base_ns = _base(top.get("baseTimeNanoseconds"))
    told = top.get("distributedInfo")
    if isinstance(told, dict):
        rank, size, backend = map(told.get, ("rank", "world_size", "backend"))
        if type(size) is int and 0 < size <= MOST_RANKS:
            head.world_size = size
        if type(rank) is int and 0 <= rank < (head.world_size or MOST_RANKS):
            head.rank = rank
        head.backend = backend[:100] if isinstance(backend, str) else ""
        head.groups = tuple(_groups(told.get("pg_config")))
    return head


def _base(told: object) -> int:
    return told if type(told) is int and 0 <= told < _LATEST_NS else 0


def _groups(told: object) -> Iterator[TracedGroup]:
    for one in told if isinstance(told, list) else ():
        if isinstance(one, dict):
            name, size = one.get("pg_name"), one.get("pg_size")
            if isinstance(name, str) and type(size) is int:
                yield TracedGroup(name[:200], str(one.get("ranks"))[:200], size)


def stream(
    file: IO[bytes], before: bytes, state: StreamState
) -> Iterator[ProfiledEvent]:
    """The events of a file that have a duration, in the order of the file.

    Args:
        file: Open for reading, behind what was read.
        before: What was read of the events already.
        state: Takes how the reading went.

    Yields:
        Events. What cannot be read is counted in `state`.

    Raises:
        OSError: It cannot be read further.
        EOFError: What it is packed with ends too early.
    """
    for text in blocks(file, before):
        for event in _in(text, state):
            state.events += 1
            if event.ph == "X":
                if 0 <= event.ts < _LATEST_US and 0 <= event.dur < _LONGEST_US:
                    yield event
                else:
                    state.lost += 1
        closes = _last_close(text)
        state.is_closed = closes > 0  # what counts is the last part
        if closes and (found := _BASE.search(text, closes)):
            state.base_ns = _base(int(found[1]))


def _last_close(text: bytes) -> int:
    """Behind where a list of events seems to end; 0: nowhere."""
    end = len(text)
    for _ in range(_MOST_BRACKETS):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            return 0
        before = text[max(0, end - _NEAR) : end].rstrip(b" \r\n\t")[-1:]
        if before in (b"}", b"") and text[end + 1 : end + _NEAR].lstrip()[:1] in _CLOSE:
            return end + 1
    return 0


_DECODER = msgspec.json.Decoder(list[ProfiledEvent])


def _in(text: bytes, state: StreamState) -> Iterator[ProfiledEvent]:
    """The events of a part of the file."""
    whole = text.strip(b" \r\n\t,")
    try:
        yield from _DECODER.decode(b"[" + whole + b"]")
        return
    except (ValueError, RecursionError):
        pass
    begin = 0
    for seam in [*SEAM.finditer(whole), None]:
        piece = whole[begin : seam.start() + 1 if seam else len(whole)]
        begin = seam.end() if seam else len(whole)
        if (event := _one(piece)) is not None:
            yield event
        elif b"{" in piece:
            state.lost += 1


def _one(piece: bytes) -> ProfiledEvent | None:
    """The event at the beginning of a text; what follows it is the end of the file."""
    try:
        found, _ = _JSON.raw_decode(piece.decode("utf-8", "replace"))
        return msgspec.convert(found, ProfiledEvent)
    except (ValueError, RecursionError):
        return None


_JSON = json.JSONDecoder()
