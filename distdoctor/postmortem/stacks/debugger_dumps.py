"""Stacks that gdb (`bt`, `py-bt`) and pystack have written as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from distdoctor.postmortem.stacks.thread_stacks import (
    MOST_FRAMES,
    MOST_THREADS,
    ProcessStacks,
    StackLine,
    ThreadStack,
)

_GDB_THREAD = re.compile(
    r"Thread \d{1,9} \((?:Thread 0x[0-9a-f]+ )?\(?LWP (\d{1,10})\)"
)
_GDB_FRAME = re.compile(
    r"#\d{1,6} +(?:0x[0-9a-f]+ in )?(\S.{0,500}?) \(.{0,1000}?\)"
    r"(?: (?:at (\S+?):(\d{1,9})|from (\S+)))?$"
)
_GDB_PYTHON = re.compile(
    r"#\d{1,6} Frame 0x[0-9a-f]+, for file (.+?), line (\d{1,9}), in (\S+)"
)
_PYTHON = re.compile(r' *(?:\(Python\) )?File "(.*?)", line (\d{1,9}), in (.*)')
_NATIVE = re.compile(r' *\(C\) File "(.*?)", line (\d{1,9}), in (.*)')
_PYSTACK_THREAD = re.compile(
    r"Traceback for thread (\d{1,10})(.*)\(most recent call last\)"
)
_PROCESS = re.compile(r"^\[New LWP|^Attaching to .*process (\d{1,10})")


def is_debugger_text(head: str) -> bool:
    """Whether a text holds stacks of gdb or pystack.

    Args:
        head: The first lines.
    """
    return bool(
        _PYSTACK_THREAD.search(head)
        or re.search(r"^Thread \d+ \(.*LWP \d+\)", head, re.MULTILINE)
        or re.search(r"^#0 +(0x[0-9a-f]+ in |\S+ \(|Frame 0x)", head, re.MULTILINE)
    )


@dataclass(slots=True)
class _Thread:
    number: int
    outermost_first: bool
    holds_gil: bool = False
    python: list[StackLine] = field(default_factory=list)
    native: list[StackLine] = field(default_factory=list)

    def stack(self, is_main: bool) -> ThreadStack:
        """Python's lines where there are some, behind the innermost native ones."""
        lines = self.python or self.native
        if self.outermost_first:
            lines = lines[::-1]
        return ThreadStack(
            tuple(lines), "", self.number, is_main, holds_gil=self.holds_gil
        )


def of_text(lines: Iterable[str]) -> list[ProcessStacks]:
    """The process in a text of gdb or pystack; other lines are passed over.

    Args:
        lines: Without or with their ends.

    Returns:
        One process, or none if there is no stack in it.
    """
    threads: list[_Thread] = []
    for raw in lines:
        line = raw.rstrip()
        if (match := _GDB_THREAD.match(line)) is not None:
            threads.append(_Thread(int(match[1]), outermost_first=False))
        elif (match := _PYSTACK_THREAD.search(line)) is not None:
            threads.append(_Thread(int(match[1]), True, "Has the GIL" in match[2]))
        elif (found := _line(line)) is not None:
            if not threads:
                threads.append(_Thread(0, outermost_first=False))
            is_python, stack_line = found
            into = threads[-1].python if is_python else threads[-1].native
            if len(into) < MOST_FRAMES:
                into.append(stack_line)
        if len(threads) > MOST_THREADS:
            break
    threads = [one for one in threads if one.python or one.native]
    if not threads:
        return []
    # The kernel numbers the first thread as the process, and later ones higher.
    first = min(one.number for one in threads)
    stacks = tuple(one.stack(one.number == first) for one in threads)
    by = "pystack" if any(one.outermost_first for one in threads) else "gdb"
    return [ProcessStacks(stacks, first, taken_by=by)]


def _line(line: str) -> tuple[bool, StackLine] | None:
    """Whether a line of a stack is Python's, and it; None: it is none."""
    if (match := _GDB_PYTHON.match(line) or _PYTHON.fullmatch(line)) is not None:
        return True, StackLine(match[1], int(match[2]), match[3].removesuffix("()"))
    if (match := _NATIVE.fullmatch(line)) is not None:
        return False, StackLine(match[1], int(match[2]), match[3])
    if (match := _GDB_FRAME.match(line)) is not None:
        file, number, library = match[2] or "", match[3] or "0", match[4] or ""
        return False, StackLine(file or library, int(number), match[1])
    return None
