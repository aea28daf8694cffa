"""The events of a timeline file, as a stream, in constant memory.

A timeline is a JSON array of Chrome's trace events. It may be torn anywhere, have no
closing bracket, and be as large as a job is long: where cycles are marked, there is an
event each millisecond.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, NamedTuple

from distdoctor.postmortem.trace_blocks import blocks

_LONGEST_NAME = 500
_MOST_DIGITS = 18

_ONE = re.compile(rb'\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]{0,2000}\}){0,2000}\}')
_MARK = b'"CYCLE_START"'
_AT = re.compile(rb'"ts"\s*:\s*(\d{1,18})')


class TraceEvent(NamedTuple):
    """One event.

    Attributes:
        phase: Chrome's letter: B begins, E ends, X is a moment, i a mark, M a name.
        name: What begins, or which rank has come; of M, the name of the tensor.
        at: Microseconds from when Horovod started; of M, what `began` tells, or 0.
        tensor: Number of the tensor (Chrome's pid); -1: it has none.
    """

    phase: str
    name: str = ""
    at: int = 0
    tensor: int = -1


BEGAN = "start_time_since_epoch_in_micros"
"""Name of the event that tells when Horovod started, in microseconds since 1970."""


def events(file: IO[bytes]) -> Iterator[TraceEvent]:
    """The events of a file, in the order in which they were written.

    Args:
        file: Open for reading.

    Yields:
        Events; what cannot be read is passed over. Of marks of cycles that follow each
        other without anything between them, the last of a block.

    Raises:
        OSError: It cannot be read further.
        EOFError: What it is packed with ends too early.
    """
    for text in blocks(file):
        yield from _in(text)


def _in(text: bytes) -> Iterator[TraceEvent]:
    """The events of a part of the file that ends where one ends."""
    marks = text.count(_MARK)
    if marks and marks == text.count(b"{"):
        stamps = _AT.findall(text)
        if stamps:
            yield TraceEvent("i", "CYCLE_START", int(stamps[-1]))
        return
    for one in _objects(text):
        if isinstance(one, dict) and (event := _event(one)) is not None:
            yield event


def _objects(text: bytes) -> Iterator[object]:
    begin = text.find(b"{")
    if begin < 0:
        return
    body = text[begin:].rstrip(b"] \r\n\t,")
    try:
        found = json.loads(b"[" + body + b"]")
    except (ValueError, RecursionError):
        for piece in _ONE.finditer(text):
            with suppress(ValueError, RecursionError):
                yield json.loads(piece[0])
        return
    for one in found:
        inner = one.get("traceEvents") if isinstance(one, dict) else None
        if isinstance(inner, list):  # as a viewer saves it
            yield from inner
        else:
            yield one


def _event(one: dict[object, object]) -> TraceEvent | None:
    phase, name = one.get("ph"), one.get("name", "")
    if not isinstance(phase, str) or not isinstance(name, str):
        return None
    tensor = _number(one.get("pid"))
    if phase != "M":
        return TraceEvent(
            phase, name[:_LONGEST_NAME], max(_number(one.get("ts")), 0), tensor
        )
    args = one.get("args")
    if name != "process_name" or not isinstance(args, dict):
        return TraceEvent("M", "", 0, -1)
    if (began := _number(args.get(BEGAN))) >= 0:
        return TraceEvent("M", BEGAN, began, -1)
    known = args.get("name")
    if not isinstance(known, str):
        return None
    return TraceEvent("M", known[:_LONGEST_NAME], 0, tensor)


def _number(value: object) -> int:
    """A number that is none of hostile size; -1: it is none."""
    if type(value) is int and 0 <= value < 10**_MOST_DIGITS:
        return value
    return -1
