"""Reads the dumps of all ranks, those that are nearly the same at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeAlias

import numpy as np

from distdoctor.postmortem.flight_recorder.alike_files import AlikeDumps, model_of
from distdoctor.postmortem.flight_recorder.decoding import (
    Dump,
    NoDump,
    dump_of,
    loaded,
)
from distdoctor.postmortem.flight_recorder.entry_columns import EntryTables
from distdoctor.postmortem.leavings import Leaving

MOST_BYTES = 1 << 30
"""Of one dump, unpacked; one of a full ring has some megabytes."""

_WORTH_PROCESSES_BYTES = 8 << 20
_FILES_AT_ONCE = 32
_WORTH_A_MODEL = 12  # files of one size: making a model costs as much as loading ten
_MOST_MODELS = 4  # of one size
_MISSES = 3  # files after which another model is made

DumpsRead: TypeAlias = tuple[list[tuple[str, Dump]], list[tuple[str, str]], EntryTables]
"""Path and dump of each file; path and reason of each that could not be read."""


def read_dumps(leavings: Sequence[Leaving]) -> DumpsRead:
    """Read files, in several processes where that is worth it.

    Args:
        leavings: The files, in any order.

    Returns:
        What is in them, with one table of kinds of calls and lines for all.
    """
    workers = min(_processors(), 16)
    size = sum(leaving.size for leaving in leavings)
    sizes = Counter(leaving.size for leaving in leavings)
    alike = sum(count for count in sizes.values() if count >= _WORTH_A_MODEL)
    leavings = sorted(leavings, key=lambda one: one.size)
    if workers < 2 or size < _WORTH_PROCESSES_BYTES or 2 * alike > len(leavings):
        return _read_some(leavings)
    parts = [
        leavings[n : n + _FILES_AT_ONCE]
        for n in range(0, len(leavings), _FILES_AT_ONCE)
    ]
    try:
        with ProcessPoolExecutor(workers, get_context("fork")) as pool:
            return _together(pool.map(_read_some, parts))
    except (OSError, ValueError, RuntimeError):  # no processes to be had, or one died
        return _read_some(leavings)


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _together(parts: Iterable[DumpsRead]) -> DumpsRead:
    """What several processes have read, with one table for all."""
    dumps: list[tuple[str, Dump]] = []
    failed: list[tuple[str, str]] = []
    tables = EntryTables()
    for found, unreadable, own in parts:
        failed += unreadable
        kinds = [tables.kinds.setdefault(k, len(tables.kinds)) for k in own.kinds]
        chains = [tables.chains.setdefault(c, len(tables.chains)) for c in own.chains]
        kind_of, chain_of = np.array(kinds, np.int32), np.array(chains, np.int32)
        for entries in {id(dump.entries): dump.entries for _, dump in found}.values():
            if len(entries):  # several dumps may share them
                entries["kind"] = kind_of[entries["kind"]]
                entries["chain"] = chain_of[entries["chain"]]
        dumps += found
    return dumps, failed, tables


def _read_some(leavings: Sequence[Leaving]) -> DumpsRead:
    dumps: list[tuple[str, Dump]] = []
    failed: list[tuple[str, str]] = []
    tables = EntryTables()
    sizes = Counter(leaving.size for leaving in leavings)
    models = _Reading()
    for leaving in leavings:
        try:
            data = _content(leaving)
            if len(data) > MOST_BYTES:
                raise NoDump(f"it has more than {MOST_BYTES:,} bytes")
            many = sizes[leaving.size] >= _WORTH_A_MODEL
            dumps.append((leaving.path, models.read(data, tables, many=many)))
        except Exception as error:  # noqa: BLE001 - of a hostile file anything may come
            stated = str(error) or type(error).__name__
            failed.append((leaving.path, stated[:200]))
    return dumps, failed, tables


def _content(leaving: Leaving) -> bytes:
    """All of a file; more than is ever asked for would be made room for at once."""
    with leaving.open() as file:
        data = file.read(min(leaving.size, MOST_BYTES) + 1)
        if len(data) > leaving.size:  # it is packed, or grows
            data += file.read(MOST_BYTES + 1 - len(data))
    return data


class _Reading:
    """Reads files one after the other, those that are nearly the same at once."""

    def __init__(self) -> None:
        self._models: list[AlikeDumps] = []
        self._size = -1  # of the files that the models are of
        self._misses = 0  # one after the other: a rank that differs is no reason

    def read(self, data: bytes, tables: EntryTables, *, many: bool) -> Dump:
        """The dump in a file.

        Args:
            data: Its content.
            tables: What entries have in common.
            many: Whether many files are as large as this one.
        """
        if len(data) != self._size:
            self._models, self._size, self._misses = [], len(data), _MISSES
        for model in self._models:
            if (known := model.read(data)) is not None:
                self._misses = 0
                return known
        top = loaded(data)
        dump = dump_of(top, tables, len(data))
        self._misses += 1
        if many and self._misses > _MISSES and len(self._models) < _MOST_MODELS:
            self._misses = 0
            if data[:1] == b"\x80":
                model_made = model_of(data, top.get("entries", []), dump)
                self._models += [model_made] if model_made is not None else []
        return dump
