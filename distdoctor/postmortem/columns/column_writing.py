"""Dumps of flight recorders → a folder of columns, in parts of bounded size."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.columns.column_tables import (
    TABLES,
    as_json,
    connected,
    hash_of,
    texts,
    write_table,
)
from distdoctor.postmortem.columns.dump_columns import PartReferences, columns_of
from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.many_dumps import DumpReading
from distdoctor.postmortem.flight_recorder.recorder_reader import recognises
from distdoctor.postmortem.leavings import Leaving, find, whole
from distdoctor.postmortem.processors import processors
from distdoctor.postmortem.remote_files import FetchedFiles

ROWS_OF_A_PART = 2_000_000
FILES_OF_A_PART = 1_024
_FILES_AT_ONCE = 256  # remote ones that lie here at a time
_WORTH_PROCESSES_BYTES = 64 << 20


@dataclass(slots=True)
class WrittenColumns:
    """What was written.

    Attributes:
        files: Dumps.
        calls: Their calls.
        failed: Path and reason of what could not be read.
        parts: The files of columns that were written.
    """

    files: int = 0
    calls: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Path] = field(default_factory=list)

    def __iadd__(self, other: WrittenColumns) -> WrittenColumns:
        self.files += other.files
        self.calls += other.calls
        self.failed += other.failed
        self.parts += other.parts
        return self


def write_columns(paths: Sequence[str], folder: Path) -> WrittenColumns:
    """Write the dumps at these paths as columns.

    Args:
        paths: Files and folders; what is no dump is passed over.
        folder: It is made. Parts that are there already stay; those of the same files
            are written anew.

    Returns:
        What was written.

    Raises:
        LeavingsMissing: A path does not exist, the folder cannot be written, or DuckDB
            is not installed.
    """
    written = WrittenColumns()
    with FetchedFiles() as fetched:
        found: list[Leaving] = []
        for leaving in find(paths, fetched):
            try:
                if recognises(leaving.name, leaving.head()):
                    found.append(leaving)
            except OSError as error:
                written.failed.append((leaving.path, str(error)))
        for some in _slices(found, _FILES_AT_ONCE if _far(found) else len(found)):
            here, failed = whole(some, fetched)
            written.failed += failed
            written += write_dumps(here, folder)
            fetched.forget([leaving.copy for leaving in some])
    return written


def _slices(found: Sequence[Leaving], size: int) -> list[Sequence[Leaving]]:
    return [found[n : n + size] for n in range(0, len(found), max(size, 1))]


def _far(found: Iterable[Leaving]) -> bool:
    return any(leaving.copy for leaving in found)


def write_dumps(leavings: Sequence[Leaving], folder: Path) -> WrittenColumns:
    """Write dumps as columns, with several processes where there are many.

    Args:
        leavings: The dumps.
        folder: It is made.

    Returns:
        What was written.

    Raises:
        LeavingsMissing: The folder cannot be written, or DuckDB is not installed.
    """
    connected().close()  # says what is missing before anything is read
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeavingsMissing(f"{folder}: {error.strerror}") from None
    # Files of one size lie together: most differ in nothing but times.
    ordered = sorted(leavings, key=lambda one: (one.size, one.path))
    workers = processors()
    if sum(leaving.size for leaving in leavings) < _WORTH_PROCESSES_BYTES:
        workers = 1
    share = -(-len(ordered) // workers)
    chunks = _slices(ordered, min(share, FILES_OF_A_PART))
    write = partial(_write_chunk, folder=folder)
    written = WrittenColumns()
    if workers < 2:
        for chunk in chunks:
            written += write(chunk)
        return written
    with ProcessPoolExecutor(min(workers, len(chunks)), get_context("spawn")) as pool:
        for part in pool.map(write, chunks):
            written += part
    return written


def _write_chunk(leavings: Sequence[Leaving], folder: Path) -> WrittenColumns:
    """Write some files as one part, or as several if they have many calls."""
    written = WrittenColumns()
    part = _Part(PartReferences())
    reading = DumpReading(leavings, tables=part.known.tables)
    for leaving in leavings:
        try:
            dump = reading.read(leaving)
            part.add(leaving, dump)
        except Exception as error:  # noqa: BLE001 - of a hostile file anything may come
            stated = str(error) or type(error).__name__
            written.failed.append((leaving.path, stated[:200]))
            continue
        written.files += 1
        written.calls += len(dump.entries)
        if part.rows >= ROWS_OF_A_PART:
            written.parts += part.write(folder)
            part = _Part(part.known)
    if part.files:
        written.parts += part.write(folder)
    return written


class _Part:
    """The rows of some files, until they are written."""

    def __init__(self, known: PartReferences) -> None:
        self.known = known
        self.files: list[tuple[str, int]] = []
        self.rows = 0
        self._members: set[str] = set()
        self._calls: list[dict[str, NDArray[Any]]] = []
        self._tables: dict[str, dict[str, list[Any]]] = {
            name: {column: [] for column in TABLES[name]}
            for name in ("spans", "files", "members")
        }

    def add(self, leaving: Leaving, dump: Dump) -> None:
        found = columns_of(leaving.path, dump, self.known)
        head = as_json(msgspec.to_builtins(found.head))
        number = hash_of(f"{socket.gethostname()}\0{leaving.path}\0{leaving.size}")
        self.files.append((leaving.path, leaving.size))
        self.rows += len(dump.entries)
        file = np.full(len(dump.entries), number)
        self._calls.append({"file": file, **found.calls})
        spans = self._tables["spans"]
        spans["file"] += [number] * len(found.spans["channel"])
        for name, values in found.spans.items():
            spans[name] += values
        record = dump.entries["record"]
        row = {
            "file": number,
            "path": leaving.path,
            "head": head,
            "calls": len(record),
            "first_record": int(record[0]) if len(record) else 0,
            "last_record": int(record[-1]) if len(record) else -1,
            "pause_ns": found.pause_ns,
        }
        for name, value in row.items():
            self._tables["files"][name].append(value)
        for members, ranks in found.members.items():
            if members not in self._members:
                self._members.add(members)
                self._tables["members"]["members"].append(members)
                self._tables["members"]["ranks"].append(ranks)

    def write(self, folder: Path) -> list[Path]:
        import duckdb

        name = f"{hash_of(repr((socket.gethostname(), self.files))) % (1 << 64):016x}"
        calls = {
            column: np.concatenate([rows[column] for rows in self._calls])
            for column in TABLES["calls"]
        }
        connection = connected()
        try:
            paths = [write_table(connection, folder, name, "calls", calls)]
            for table, rows in {**self._tables, **self.known.rows()}.items():
                columns = _as_columns(table, rows)
                paths.append(write_table(connection, folder, name, table, columns))
        except (OSError, duckdb.Error) as error:
            raise LeavingsMissing(f"{folder}: {error}") from None
        finally:
            connection.close()
        return paths


def _as_columns(table: str, rows: Any) -> dict[str, NDArray[Any]]:
    made: dict[str, Callable[[list[Any]], NDArray[Any]]] = {
        "VARCHAR": texts,
        "BIGINT": lambda values: np.array(values, np.int64),
    }
    return {name: made[kind](rows[name]) for name, kind in TABLES[table].items()}
