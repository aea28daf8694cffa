"""What `py-spy dump` writes, as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from distdoctor.postmortem.stacks.thread_stacks import (
    MOST_FRAMES,
    MOST_THREADS,
    ProcessStacks,
    StackLine,
    ThreadStack,
)

_MOST_VARIABLES = 200
_MOST_OF_A_VALUE = 200

_PROCESS = re.compile(r"Process (\d{1,10}): ?(.*)")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) \(([\w+]+)\)(?:: "(.*)")?')
_FRAME = re.compile(r"    (\S.*) \((.*?)(?::(\d{1,9}))?\)")
_VARIABLE = re.compile(r"            (\w+): (.*)")

DAMAGED = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
    OverflowError,  # infinity is no integer
)
"""What comes of JSON that is not as a tool writes it."""


def is_py_spy_text(head: str) -> bool:
    """Whether a text begins as `py-spy dump` does.

    Args:
        head: The first lines.
    """
    return bool(re.search(r"^Thread \S+ \((idle|active)[\w+]*\)", head, re.MULTILINE))


def of_text(lines: Iterable[str]) -> list[ProcessStacks]:
    """Processes in the text of one or more dumps; other lines are passed over.

    Args:
        lines: Without or with their ends.

    Returns:
        One for each dump, in order.
    """
    found: list[_Draft] = []
    for raw in lines:
        line = raw.rstrip()
        if match := _PROCESS.fullmatch(line):
            found.append(_Draft(int(match[1]), match[2][:1_000]))
        elif match := _THREAD.fullmatch(line):
            if not found:
                found.append(_Draft(0, ""))
            found[-1].thread(match[1], match[2], match[3] or "")
        elif line.startswith("            ") and found:
            if match := _VARIABLE.fullmatch(line):
                found[-1].variable(match[1], match[2])
        elif found and line.startswith("    ") and (parsed := _known_frame(line)):
            found[-1].frame(parsed)
    return [draft.stacks() for draft in found if draft.threads]


_frames: dict[str, StackLine | None] = {}
_MOST_KNOWN = 100_000


def _known_frame(line: str) -> StackLine | None:
    """A line of a stack; thousands of ranks have the same ones."""
    if line in _frames:
        return _frames[line]
    parsed = None
    if match := _FRAME.fullmatch(line):
        parsed = StackLine(match[2], int(match[3] or 0), match[1])
    if len(_frames) < _MOST_KNOWN:
        _frames[line] = parsed
    return parsed


class _Draft:
    """A process of which the text is still being read."""

    def __init__(self, pid: int, command: str) -> None:
        self.pid, self.command = pid, command
        self.threads: list[dict[str, Any]] = []

    def thread(self, number: str, state: str, name: str) -> None:
        if len(self.threads) < MOST_THREADS:
            kernel = 0 if number.startswith("0x") else int(number)
            self.threads.append(
                {
                    "name": name,
                    "thread_id": kernel,
                    "is_main": name == "MainThread" or (0 < kernel == self.pid),
                    "holds_gil": "gil" in state,
                    "is_idle": state == "idle",
                    "lines": [],
                    "variables": [],
                }
            )

    def frame(self, line: StackLine) -> None:
        if self.threads and len(self.threads[-1]["lines"]) < MOST_FRAMES:
            self.threads[-1]["lines"].append(line)
            self.threads[-1]["variables"].append({})

    def variable(self, name: str, value: str) -> None:
        if self.threads and self.threads[-1]["variables"]:
            last = self.threads[-1]["variables"][-1]
            if len(last) < _MOST_VARIABLES:
                last[name] = value[:_MOST_OF_A_VALUE]

    def stacks(self) -> ProcessStacks:
        threads = []
        for one in self.threads:
            variables = one["variables"] if any(one["variables"]) else ()
            threads.append(
                ThreadStack(
                    **{**one, "lines": tuple(one["lines"]), "variables": variables}
                )
            )
        return ProcessStacks(tuple(threads), self.pid, self.command, "py-spy")


def of_json(text: str | bytes) -> list[ProcessStacks]:
    """Processes of which `py-spy dump --json` tells.

    Args:
        text: What it wrote.

    Returns:
        One for each process; empty if it is not in py-spy's form.
    """
    by_pid: dict[int, list[ThreadStack]] = {}
    commands: dict[int, str] = {}
    try:
        for record in json.loads(text)[:MOST_THREADS]:
            pid = int(record.get("pid") or 0)
            by_pid.setdefault(pid, []).append(_thread(record))
            info = record.get("process_info") or {}
            commands[pid] = str(info.get("command_line", ""))[:1_000]
    except DAMAGED:
        return []
    return [
        ProcessStacks(tuple(threads), pid, commands[pid], "py-spy")
        for pid, threads in by_pid.items()
    ]


def _thread(record: Mapping[str, Any]) -> ThreadStack:
    frames = record["frames"][:MOST_FRAMES]
    variables = tuple(_variables(frame) for frame in frames)
    kernel = int(record.get("os_thread_id") or 0)
    name = str(record.get("thread_name") or "")
    return ThreadStack(
        lines=tuple(
            StackLine(
                str(frame["filename"]), int(frame["line"] or 0), str(frame["name"])
            )
            for frame in frames
        ),
        name=name,
        thread_id=kernel,
        is_main=name == "MainThread" or (0 < kernel == int(record.get("pid") or 0)),
        holds_gil=bool(record.get("owns_gil")),
        is_idle=record.get("active") is False,
        variables=variables if any(variables) else (),
    )


def _variables(frame: Mapping[str, Any]) -> Mapping[str, str]:
    return {
        str(one["name"]): str(one.get("repr"))[:_MOST_OF_A_VALUE]
        for one in (frame.get("locals") or ())[:_MOST_VARIABLES]
    }
