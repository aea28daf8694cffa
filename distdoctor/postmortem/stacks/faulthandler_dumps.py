"""Tracebacks of all threads that Python's faulthandler has written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from distdoctor.postmortem.stacks.thread_stacks import (
    MOST_FRAMES,
    MOST_THREADS,
    ProcessStacks,
    StackLine,
    ThreadStack,
)

_THREAD = re.compile(
    r"(Current thread|Thread) 0x([0-9a-fA-F]{1,16})(?: \[(.{0,100})\])?.*"
    r"\(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_START = re.compile(r"Fatal Python error|Timeout \(\d+:\d\d:\d\d")


def is_faulthandler_text(head: str) -> bool:
    """Whether a text holds tracebacks of faulthandler.

    Args:
        head: The first lines.
    """
    return bool(_THREAD.search(head))


def of_text(lines: Iterable[str]) -> list[ProcessStacks]:
    """Dumps in a text, each of one process; other lines are passed over.

    Faulthandler writes the threads with the main thread last, and says no process. A
    second dump begins where a thread's number comes again.

    Args:
        lines: Without or with their ends.

    Returns:
        One for each dump, in order.
    """
    dumps: list[list[tuple[str, str, list[StackLine]]]] = []
    seen: set[str] = set()
    for raw in lines:
        line = raw.rstrip()
        if match := _THREAD.search(line):
            number = match[2]
            if not dumps or number in seen or len(dumps[-1]) >= MOST_THREADS:
                dumps.append([])
                seen = set()
            seen.add(number)
            dumps[-1].append((number, match[3] or "", []))
        elif match := _FRAME.search(line):
            if dumps and len(dumps[-1][-1][2]) < MOST_FRAMES:
                number_of = int(match[2]) if match[2].isdigit() else 0
                dumps[-1][-1][2].append(StackLine(match[1], number_of, match[3]))
        elif _START.search(line) and dumps and dumps[-1]:
            dumps.append([])
            seen = set()
    return [_stacks(dump) for dump in dumps if dump]


def _stacks(dump: list[tuple[str, str, list[StackLine]]]) -> ProcessStacks:
    last = len(dump) - 1
    return ProcessStacks(
        tuple(
            ThreadStack(tuple(lines), name, is_main=at == last)
            for at, (_, name, lines) in enumerate(dump)
        ),
        taken_by="faulthandler",
    )
