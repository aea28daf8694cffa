"""Reads all dumps of flight recorders that a job left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from distdoctor.model.run import named
from distdoctor.postmortem.flight_recorder.assembling import assemble
from distdoctor.postmortem.flight_recorder.entry_columns import EntryTables
from distdoctor.postmortem.flight_recorder.many_dumps import read_dumps
from distdoctor.postmortem.flight_recorder.memberships import Memberships, memberships
from distdoctor.postmortem.flight_recorder.recorder_files import (
    DEFAULT_GROUP,
    Assigned,
    assign,
    rank_of,
)
from distdoctor.postmortem.job_evidence import DUMP, Columns, Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.readers import Reader

KIND = "flight recorder dump"

_MOST_NAMED = 32  # ranks that are told one by one

_NAME = re.compile(
    r"(?:nccl_trace|comm_lib_trace|fr_trace|fr)_rank_\S*\d", re.IGNORECASE
)
_MARKS = (b"pg_config", b"default_pg", b"entries", b"profiling_name")


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a dump, by its first bytes, or at least named like one.

    Args:
        name: The file's name.
        head: Its first bytes.
    """
    is_data = head[:1] == b"\x80" or head.lstrip()[:1] == b"{"
    marks = (mark for mark in _MARKS if mark in head)
    if is_data and next(marks, b"") and next(marks, b""):
        return True
    return _NAME.fullmatch(re.sub(r"\.(?:json|pkl|pickle)$", "", name)) is not None


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read dumps into the evidence.

    Args:
        leavings: The files.
        evidence: What they tell is added to it.
    """
    found, failed, tables = read_dumps(leavings)
    given = assign(found)
    failed += given.rejected
    failed += _named_alike(evidence, [path for path, _ in found])
    evidence.unreadable += failed
    for owner, path in given.paths.items():
        version = given.dumps[owner].version
        remark = f"format {version}" if version else ""
        evidence.sources.append(SourceRead(path, KIND, DUMP, (owner,), remark))
    bad = {rank: why for path, why in failed if (rank := rank_of(path)) is not None}
    _set_world(evidence, given, bad)
    evidence.left_out += given.doubled
    _tell_stale(evidence, given)
    _tell_missing(evidence, given, bad)
    if not given.dumps:
        return
    if len(evidence.columns.calls):
        evidence.remarks.append("calls are told by another source than the dumps")
        return
    _fill(evidence, given, tables)


def _tell_stale(evidence: Evidence, given: Assigned) -> None:
    """List the dumps of other runs of the job."""
    why = "it is of another, earlier run of the job: others of this one are newer"
    for path, rank in given.stale:
        evidence.left_out.append((path, f"of rank {rank} in another run of the job"))
    ranks = sorted({rank for _, rank in given.stale})
    if len(ranks) > _MOST_NAMED:
        evidence.set_aside.append((f"a dump of each of {named(ranks)}", why))
    else:
        evidence.set_aside += [(f"a dump of rank {rank}", why) for rank in ranks]


def _tell_missing(evidence: Evidence, given: Assigned, bad: dict[int, str]) -> None:
    """Say of each rank without a dump why there is none."""
    missing = [n for n in range(evidence.world_size) if n not in given.dumps]
    path = next(iter(given.paths.values()), "")
    stem = re.sub(r"\d+(\D*)$", "", Path(path).name)
    names = map(os.path.basename, given.paths.values())
    alike = all(name.startswith(stem) for name in names)
    stale = {rank for _, rank in given.stale}
    for rank in missing:
        why = "there is no dump of it among those of the others"
        if rank in bad:
            why = f"its dump could not be read ({bad[rank]})"
            evidence.partial.setdefault(rank, why)
        elif rank in stale:
            why = "the dump with its number is of another run of the job"
        elif given.clashing:
            why = "dumps of several ranks have one number: one of them may be its own"
            evidence.partial.setdefault(rank, why)
        elif alike and len(missing) <= _MOST_NAMED:
            why = f"it left no dump: there is no {stem}{rank} beside the others"
        elif len(missing) <= _MOST_NAMED:
            why = f"there is no dump whose name ends with {rank}"
        evidence.unseen.setdefault(rank, why)


def _set_world(evidence: Evidence, given: Assigned, bad: Iterable[int]) -> None:
    size = given.world_size
    evidence.stated_size = size
    if not size:  # nothing tells who is in the job but the files
        size = max([*given.dumps, *bad], default=-1) + 1
    size = max([size, *(rank + 1 for rank in given.dumps)])
    evidence.world_size = max(evidence.world_size, size)


def _fill(evidence: Evidence, given: Assigned, tables: EntryTables) -> None:
    dumps = given.dumps
    found = memberships(dumps, evidence.world_size, tables.kinds)
    assembled = assemble(dumps, tables, found)
    columns = assembled.columns
    key = columns.calls["group"] * np.int64(evidence.world_size)
    key += columns.calls["rank"]
    first = np.flatnonzero(np.diff(key, prepend=-1))  # some more than once
    pairs = columns.calls[["group", "rank"]][first].tolist()
    recorded = {(int(group), int(rank)) for group, rank in pairs}
    evidence.columns = replace(
        columns, reached=_reached(given, found, columns, recorded)
    )
    for rank, dump in dumps.items():
        if not len(dump.entries):
            evidence.life.setdefault(rank, [])  # it is seen, and made no call
        if lists := found.lists.get(rank):
            evidence.add(rank, *lists)
        why = ""
        if count := assembled.left_out.get(rank):
            why = f"{count:,} entries of its dump could not be understood"
        elif not dump.has_entries:
            why = "its dump was made without its calls"
        elif dump.has_gaps:
            why = "its dump has only the calls that were not complete"
        elif dump.begins_late:
            why = "its recorder kept only the last calls"
        if why:
            evidence.partial.setdefault(rank, why)


def _reached(
    given: Assigned,
    found: Memberships,
    columns: Columns,
    recorded: Set[tuple[int, int]],
) -> dict[tuple[int, int], int]:
    """How far ranks had come on groups of which their dump has no call."""
    messages = columns.calls["ordinal"] == 0
    mixed = {*np.flatnonzero(np.bincount(columns.calls["group"][messages])).tolist()}
    gaps = any(dump.has_gaps for dump in given.dumps.values())
    reached = {}
    for number, (group, name) in enumerate(zip(found.groups, found.names, strict=True)):
        for rank in group.ranks:
            dump = given.dumps.get(rank)
            if dump is None or (number, rank) in recorded:
                continue
            if dump.members and name not in dump.members:
                continue  # it has no communicator of it: it never called in it
            # Its own number of a group is known of the default group alone.
            reported = dump.enqueued.get("0", -1) if name == DEFAULT_GROUP else -1
            if reported > 0 and number not in mixed:
                reached[number, rank] = reported
            elif gaps or dump.begins_late or dump.has_gaps or not dump.has_entries:
                reached[number, rank] = -1
    return reached


def _named_alike(evidence: Evidence, paths: Iterable[str]) -> list[tuple[str, str]]:
    """Files that are no dumps and lie among them under a dump's name."""
    stems = {_stem(path) for path in paths} - {None}
    found = [one for one in evidence.left_out if _stem(one[0]) in stems]
    evidence.left_out[:] = [one for one in evidence.left_out if one not in found]
    return found


def _stem(path: str) -> tuple[str, str] | None:
    """Folder and what is before the rank, of a name that has one."""
    folder, name = os.path.split(path)  # thousands of times as fast as a Path
    match = re.fullmatch(r"(.*\D)\d+", name)
    return None if match is None else (folder, match[1])


READER = Reader(KIND, recognises, read)
