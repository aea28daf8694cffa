"""Reads the dumps of all ranks, those that are nearly the same at once."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
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
from distdoctor.postmortem.processors import processors

MOST_BYTES = 1 << 30
"""Of one dump, unpacked; one of a full ring has some megabytes."""

_WORTH_PROCESSES_BYTES = 8 << 20
_FILES_AT_ONCE = 32
_WORTH_A_MODEL = 12  # files of one size: making a model costs as much as loading ten
_MOST_MODELS = 4  # that no file was like
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
    workers = min(processors(), 16)
    size = sum(leaving.size for leaving in leavings)
    leavings = sorted(leavings, key=lambda one: one.size)
    if workers < 2 or size < _WORTH_PROCESSES_BYTES:
        return _read_some(leavings)
    middle = len(leavings) // 2  # where the most are of one size, if many are
    tried = leavings[middle : middle + _FILES_AT_ONCE]
    reading = DumpReading(tried)
    first = reading.all()
    rest = [*leavings[:middle], *leavings[middle + _FILES_AT_ONCE :]]
    if 2 * reading.hits > len(tried):
        return _together([first, _read_some(rest)])
    parts = [rest[n : n + _FILES_AT_ONCE] for n in range(0, len(rest), _FILES_AT_ONCE)]
    try:
        with ProcessPoolExecutor(workers, get_context("fork")) as pool:
            return _together(chain([first], pool.map(_read_unlike, parts)))
    except (OSError, ValueError, RuntimeError):  # no processes to be had, or one died
        return _read_some(leavings)


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
    return DumpReading(leavings).all()


def _read_unlike(leavings: Sequence[Leaving]) -> DumpsRead:
    return DumpReading(leavings, models=0).all()


def _content(leaving: Leaving) -> bytes:
    """All of a file; more than is ever asked for would be made room for at once."""
    with leaving.open() as file:
        data = file.read(min(leaving.size, MOST_BYTES) + 1)
        if len(data) > leaving.size:  # it is packed, or grows
            data += file.read(MOST_BYTES + 1 - len(data))
    return data


class DumpReading:
    """Reads files one after the other, those that are nearly the same at once.

    Attributes:
        hits: Files that were known by another.
    """

    def __init__(
        self,
        leavings: Sequence[Leaving],
        models: int = _MOST_MODELS,
        tables: EntryTables | None = None,
    ) -> None:
        """Look at what the files have in common.

        Args:
            leavings: All files that are to be read.
            models: Files that others are compared with, at most.
            tables: Where kinds of calls and lines are looked up and added.
        """
        self._leavings = leavings
        self._most_models = models  # that no file was like
        self._sizes = Counter(leaving.size for leaving in leavings)
        self._tables = EntryTables() if tables is None else tables
        self._models: list[AlikeDumps] = []
        self._size = -1  # of the files that the models are of
        self._misses = 0  # one after the other: a rank that differs is no reason
        self._in_vain = 0  # models made since the last hit
        self.hits = 0

    def all(self) -> DumpsRead:
        """Read all of them."""
        dumps: list[tuple[str, Dump]] = []
        failed: list[tuple[str, str]] = []
        collects = gc.isenabled()
        gc.disable()  # it would look at each file's objects again and again
        try:
            for leaving in self._leavings:
                try:
                    dumps.append((leaving.path, self.read(leaving)))
                except Exception as error:  # noqa: BLE001 - anything may come of one
                    stated = str(error) or type(error).__name__
                    failed.append((leaving.path, stated[:200]))
        finally:
            if collects:
                gc.enable()
        return dumps, failed, self._tables

    def read(self, leaving: Leaving) -> Dump:
        """Read one of the files.

        Args:
            leaving: It.

        Raises:
            NoDump: It is none, or too large for one.
            Exception: It is damaged; anything may come of it.
        """
        data = _content(leaving)
        if len(data) > MOST_BYTES:
            raise NoDump(f"it has more than {MOST_BYTES:,} bytes")
        if len(data) != self._size:
            self._models, self._size, self._misses = [], len(data), _MISSES
        for model in self._models:
            if (known := model.read(data)) is not None:
                self._misses = self._in_vain = 0
                self.hits += 1
                return known
        top = loaded(data)
        dump = dump_of(top, self._tables, len(data))
        self._misses += 1
        many = self._sizes[leaving.size] >= _WORTH_A_MODEL
        if many and self._misses > _MISSES and self._in_vain < self._most_models:
            self._misses = 0
            self._in_vain += 1
            if data[:1] == b"\x80":
                made = model_of(data, top.get("entries", []), dump)
                self._models += [] if made is None else [made]
        return dump
