"""Reads files of stack dumps, of whatever tool, with the ranks that they name."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from lzma import LZMAError
from typing import Any, NamedTuple

from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.stacks import (
    debugger_dumps,
    faulthandler_dumps,
    py_spy_dumps,
)
from distdoctor.postmortem.stacks.core_files import is_core, read_core
from distdoctor.postmortem.stacks.thread_stacks import (
    MOST_FRAMES,
    ProcessStacks,
    StackLine,
    ThreadStack,
)

LARGEST_FILE = 32 * 1024 * 1024
"""As much of a file as is read, unpacked; a dump of a rank takes some kilobytes."""

_MOST_OF_A_LINE = 4_000
_HEAD_LINES = 12

_JSON = re.compile(rb"\A\s*\[\s*\{")
_PY_SPY_KEYS = (b'"os_thread_id"', b'"thread_id"', b'"frames"')
_OURS_KEYS = (b'"rank"', b'"taken_by"', b'"frames"')


class RankDump(NamedTuple):
    """The stacks of a process, and its rank if the file says it.

    Attributes:
        rank: As a line above the dump, or a prefix of its lines, says it; None: none
            does.
        stacks: The stacks.
        world_size: Number of ranks, if the file says it; else 0.
        signal: That ended the process; empty: none is known to have.
    """

    rank: int | None
    stacks: ProcessStacks
    world_size: int = 0
    signal: str = ""


Parse = Callable[[Iterable[str]], list[ProcessStacks]]

_TEXTS: tuple[tuple[Callable[[str], bool], Parse], ...] = (
    (py_spy_dumps.is_py_spy_text, py_spy_dumps.of_text),
    (faulthandler_dumps.is_faulthandler_text, faulthandler_dumps.of_text),
    (debugger_dumps.is_debugger_text, debugger_dumps.of_text),
)


def recognises(_name: str, head: bytes) -> bool:
    """Whether a file holds stacks, and little else before them.

    Args:
        _name: Its name.
        head: Its first bytes.
    """
    if is_core(head):
        return True
    if _JSON.match(head):
        return any(
            all(key in head for key in keys) for keys in (_PY_SPY_KEYS, _OURS_KEYS)
        )
    if b"\0" in head:
        return False
    lines = head[:16_384].decode(errors="replace").splitlines()
    begin = "\n".join(_unmarked(line) for line in lines if line.strip())
    first = "\n".join(begin.splitlines()[:_HEAD_LINES])
    return any(is_kind(first) for is_kind, _ in _TEXTS)


def read(leaving: Leaving) -> list[RankDump]:
    """The dumps in a file.

    Args:
        leaving: The file.

    Returns:
        One for each process, in the order of the file.

    Raises:
        OSError: It cannot be read.
    """
    try:
        if is_core(leaving.head(64)):
            return [_of_core(leaving)]
        with leaving.open() as file:
            data = file.read(LARGEST_FILE)
    except (EOFError, LZMAError, zlib.error) as error:
        raise OSError(f"damaged: {error}") from error
    if _JSON.match(data):
        return _of_json(data)
    return list(_of_text(data.decode(errors="replace")))


def _of_core(leaving: Leaving) -> RankDump:
    core = read_core(leaving)
    if core.identity is None:
        return RankDump(None, core.stacks, signal=core.signal)
    one = core.identity
    return RankDump(one.rank, core.stacks, one.world_size, core.signal)


def _of_json(data: bytes) -> list[RankDump]:
    found = [RankDump(None, one) for one in py_spy_dumps.of_json(data)]
    return found or list(_ours(data))


def _ours(data: bytes) -> Iterator[RankDump]:
    """What `stacks.json` of a record says: of each rank, its last sample."""
    last: dict[int, ProcessStacks] = {}
    try:
        for sample in json.loads(data):
            lines = tuple(map(_our_line, sample["frames"][:MOST_FRAMES]))
            thread = ThreadStack(
                lines,
                "MainThread",
                is_main=True,
                holds_gil=bool(sample.get("holds_gil")),
            )
            last[int(sample["rank"])] = ProcessStacks(
                (thread,), int(sample["pid"]), taken_by="distdoctor"
            )
    except py_spy_dumps.DAMAGED:
        pass  # what came before is well
    for rank, stacks in last.items():
        if rank >= 0:
            yield RankDump(rank, stacks)


def _our_line(frame: Any) -> StackLine:
    return StackLine(str(frame["file"]), int(frame["line"]), str(frame["function"]))


_PREFIX = re.compile(r"\[(?:rank|default)?(\d{1,6})\]:?|(\d{1,6}): ")
_MARK = re.compile(
    r"\W{0,12}(?:\S{1,80} )?\brank[ _=:#-]{0,3}(\d{1,6})\b[^()\"]{0,80}$", re.IGNORECASE
)


_OF_STACKS = {" ", "T", ""}
"""Lines of stacks begin with one of these: an indented frame, a thread, none."""


def _unmarked(line: str) -> str:
    """A line without the rank that a launcher has put before it."""
    match = _PREFIX.match(line)
    return line[match.end() :] if match else line


def _of_text(text: str) -> Iterator[RankDump]:
    """Dumps of a text, by the ranks that lines above them or their prefixes name."""
    sections: list[tuple[int | None, list[str]]] = [(None, [])]
    prefixed: dict[int, list[str]] = {}
    for raw in text.splitlines():
        line = raw[:_MOST_OF_A_LINE]
        if line[:1] in _OF_STACKS:  # most lines: no pattern need be tried
            sections[-1][1].append(line)
        elif match := _PREFIX.match(line):
            rank = int(match[1] or match[2])
            prefixed.setdefault(rank, []).append(line[match.end() :])
        elif match := _MARK.match(line):
            sections.append((int(match[1]), []))
        else:
            sections[-1][1].append(line)
    of_each: list[tuple[int | None, list[str]]] = [*sections, *prefixed.items()]
    for number, lines in of_each:
        for stacks in _parsed(lines):
            yield RankDump(number, stacks)


def _parsed(lines: list[str]) -> list[ProcessStacks]:
    head = "\n".join(lines[: 4 * _HEAD_LINES])
    for is_kind, parse in _TEXTS:
        if is_kind(head):
            return parse(lines)
    return []
