"""Spreads logs over processes; large files in pieces that end with a line."""

from __future__ import annotations

import lzma
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import MappingProxyType
from typing import IO, NamedTuple

from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs.piece_facts import Piece
from distdoctor.postmortem.nccl_logs.piece_scanner import Scanner
from distdoctor.postmortem.processors import processors

BLOCK = 1 << 20
_PIECE = 64 << 20
_FOR_ONE = 48 << 20
"""With less than this, starting processes takes longer than reading."""

MOST_UNPACKED = 1 << 36


class _Task(NamedTuple):
    leaving: Leaving
    start: int
    end: int  # -1: the whole file, which may be packed


class Whole(NamedTuple):
    """What all logs tell together, and what could not be read of them."""

    piece: Piece
    unreadable: list[tuple[str, str]]


def read_all(
    leavings: Sequence[Leaving], most: Mapping[str, int] = MappingProxyType({})
) -> Whole:
    """Read logs.

    Args:
        leavings: In the order in which they were written, as far as it is known.
        most: By path, how many bytes of a file are read, where it is not all of it.

    Returns:
        What they tell together.
    """
    tasks = [task for leaving in leavings for task in _tasks(leaving, most)]
    size = sum(leaving.size for leaving in leavings)
    workers = min(len(tasks), processors())
    if workers < 2 or size < _FOR_ONE:
        return _together(tasks, map(_read, tasks))
    # A fork of a process with threads may hang; spawning takes a second.
    how = "fork" if threading.active_count() == 1 else "spawn"
    with ProcessPoolExecutor(workers, get_context(how)) as pool:
        return _together(tasks, pool.map(_read, tasks))


def _together(tasks: Sequence[_Task], found: Iterable[tuple[Piece, str]]) -> Whole:
    """All pieces as one, in their order; lines are numbered as in their files."""
    whole = Whole(Piece(), [])
    lines_before = 0
    for task, (piece, error) in zip(tasks, found, strict=True):
        if not task.start:
            lines_before = 0
        piece.move(lines_before)
        lines_before += piece.lines
        _add(whole.piece, piece)
        if error:
            whole.unreadable.append((task.leaving.path, error))
    return whole


def read_stream(stream: IO[bytes], name: str) -> Piece:
    """Read a log from a stream, to its end.

    Args:
        stream: Of bytes.
        name: What reports call it.
    """
    scanner = Scanner(name)
    _feed(scanner, stream, MOST_UNPACKED)
    return scanner.end()


def _tasks(leaving: Leaving, most: Mapping[str, int]) -> list[_Task]:
    """A file as pieces; one that is packed can only be read from its start."""
    size = min(leaving.size, most.get(leaving.path, leaving.size))
    if leaving.is_packed or size == leaving.size <= _PIECE:
        return [_Task(leaving, 0, -1)]
    return [_Task(leaving, at, min(at + _PIECE, size)) for at in range(0, size, _PIECE)]


def _read(task: _Task) -> tuple[Piece, str]:
    scanner = Scanner(task.leaving.path)
    error = ""
    try:
        with task.leaving.open() as file:
            if task.end < 0:
                _feed(scanner, file, MOST_UNPACKED)
            else:
                _feed_piece(scanner, file, task.start, task.end)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as damage:
        error = str(damage) or type(damage).__name__
    return scanner.end(), error


def _feed(scanner: Scanner, file: IO[bytes], most: int) -> None:
    """Read lines up to a number of bytes, and the rest of the last of them."""
    buffer = bytearray(2 * BLOCK)
    into = memoryview(buffer)
    kept = 0  # bytes of a line whose end was not read yet
    readinto: Callable[[memoryview], int] = file.readinto  # type: ignore[attr-defined]
    while most > 0 and (got := readinto(into[kept : kept + min(BLOCK, most)])):
        most -= got
        filled = kept + got
        end = buffer.rfind(b"\n", kept, filled) + 1
        if end:
            scanner.feed(buffer, end)
            begin = end
        else:  # a line that is longer than any of NCCL's loses its beginning
            begin = kept if kept >= BLOCK else 0
        kept = filled - begin
        into[:kept] = bytes(into[begin:filled])
    if kept:
        scanner.feed(bytes(into[:kept]) + (b"" if most else file.readline(BLOCK)))


def _feed_piece(scanner: Scanner, file: IO[bytes], start: int, end: int) -> None:
    """Read the lines that begin in a part of a file."""
    if start:
        file.seek(start - 1)
        file.readline()
        start = file.tell()
    _feed(scanner, file, end - start)


def _add(whole: Piece, later: Piece) -> None:
    """Put a piece behind what was read before it."""
    numbers = array("I", bytes(4 * len(later.words)))
    for words, number in later.words.items():
        numbers[number] = whole.words.setdefault(words, len(whole.words))
    for key, process in later.processes.items():
        mine = whole.processes.get(key)
        if mine is None:
            empty = type(process)(process.host, process.pid)
            mine = whole.processes[key] = empty
        mine.append(process, numbers)
    for comm, line in later.strays:
        owners = [one for one in whole.processes.values() if comm in one.calls]
        if len(owners) == 1:
            owners[0].lists_of(comm)[-1].append(0)
            owners[0].torn += 1
        else:
            whole.strays.append((comm, line))
    whole.others += later.others
    whole.versions = later.versions | whole.versions
    whole.lines += later.lines
    whole.nccl_lines += later.nccl_lines
    whole.unread += later.unread
    whole.last_stamp = max(whole.last_stamp, later.last_stamp)
    whole.full |= later.full
