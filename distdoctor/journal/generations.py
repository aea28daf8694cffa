"""Tells which processes played the ranks at the same time.

A script may start its ranks several times, one after the other (`mp.spawn` once for
each of its parts), and a launcher starts all of them anew where one has failed. Each
such generation is a run of its own: who has left in order in one is not dead in the
next, and who has not come yet to that one may come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import (
    HEADER,
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    RECORD_FIELDS,
    RecordKind,
)
from distdoctor.journal.notes_reader import read_life
from distdoctor.journal.reader import Header, JournalReader
from distdoctor.journal.regular_files import opened
from distdoctor.model.events import Started

_TIME = [name for name, _ in RECORD_FIELDS].index("time_ns")


@dataclass(frozen=True, slots=True)
class _Brief:
    """What the header of a journal tells, and when it was last written."""

    path: Path
    header: Header
    last_ns: int


def generations(
    folder: Path, ended: Set[int] = frozenset(), alive: Iterable[int] = ()
) -> list[list[Path]]:
    """The journals of ranks, by generation, the first one first.

    Those without a rank, and those that cannot be read, count to the last.

    Args:
        folder: The record folder.
        ended: Processes that were seen to end.
        alive: Processes that have not ended.

    Returns:
        For each generation the files of its journals.
    """
    paths = sorted(folder.glob("*.journal"))
    briefs = [brief for path in paths if (brief := _brief(path)) is not None]
    ranked = [brief for brief in briefs if brief.header.rank >= 0]
    sizes = {brief.header.world_size for brief in ranked} - {0}
    if len(sizes) < 2 and all(map(_is_first, paths)):
        return [paths]
    parts = _parted(ranked, ended, set(alive))
    rest = [path for path in paths if path not in {one.path for one in ranked}]
    files = [sorted(brief.path for brief in part.values()) for part in parts] or [[]]
    return [*files[:-1], [*files[-1], *rest]]


def _is_first(path: Path) -> bool:
    """Whether no process played this rank before."""
    return path.name.startswith("unranked.") or path.name.split(".")[-2] == "0"


def _brief(path: Path) -> _Brief | None:
    try:
        with opened(path) as file:
            header = Header(*HEADER.unpack(file.read(HEADER.size)))
            if header.fault():
                return None
            last_ns = header.started_ns
            if header.head and header.capacity:
                slot = (header.head - 1) % header.capacity
                file.seek(HEADER_BYTES + header.strings_bytes + slot * RECORD_BYTES)
                data = file.read(RECORD_BYTES)
                if len(data) == RECORD_BYTES:
                    last_ns = max(last_ns, int(RECORD.unpack(data)[_TIME]))
    except (OSError, ValueError, OverflowError, struct.error):
        return None
    return _Brief(path, header, last_ns)


def _parted(
    briefs: list[_Brief], ended: Set[int], alive: Set[int]
) -> list[Mapping[int, _Brief]]:
    """The generations: at its start a process joins the last one, or begins another.

    It begins one if its rank is taken, or if all of the last one joined and were over
    by then. Those who were not over go on in the new one: only their peer came anew.
    """
    parts: list[dict[int, _Brief]] = [{}]
    carried: set[int] = set()
    for brief in sorted(briefs, key=lambda one: one.header.started_ns):
        rank, begun = brief.header.rank, brief.header.started_ns
        present = parts[-1]
        if rank in present and rank not in carried:
            over = {
                r
                for r, one in present.items()
                if one.last_ns <= begun
                and (one.header.ended or one.header.pid not in alive)
            }
            kept = {
                r: one
                for r, one in present.items()
                if r not in over | {rank} and _fits(one, brief)
            }
            parts.append(kept)
            carried = set(kept)
        elif (
            present
            and all(_is_over(one, begun, ended) for one in present.values())
            and any(_has_joined(one.path) for one in present.values())
        ):
            parts.append({})
            carried = set()
        parts[-1][rank] = brief
        carried.discard(rank)
    return list(parts)


def _fits(brief: _Brief, other: _Brief) -> bool:
    """Whether two may be of one job: in one of another size nobody goes on."""
    sizes = {brief.header.world_size, other.header.world_size}
    return len(sizes) == 1 or 0 in sizes


def _is_over(brief: _Brief, at_ns: int, ended: Set[int]) -> bool:
    done = bool(brief.header.ended) or brief.header.pid in ended
    return done and brief.last_ns <= at_ns


def _has_joined(path: Path) -> bool:
    try:
        box = JournalReader(path)
    except JournalUnreadable:
        return False
    records = box.last()
    numbers = records["spec"][records["kind"] == RecordKind.LIFE]
    for number in np.unique(numbers).tolist():
        try:
            event, _ = read_life(box.string(number))
            if isinstance(event, Started) and event.joined:
                return True
        except ValueError:
            continue
    return False
