"""Reads folders of columns: of each ring what matters, as a dump of a shorter ring."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec
import psutil

from distdoctor.errors import LeavingsMissing
from distdoctor.journal.folder import as_text
from distdoctor.postmortem.columns.column_tables import (
    MAGIC,
    SCHEMA,
    TABLES,
    Head,
    connected,
)
from distdoctor.postmortem.columns.window_queries import MOST_WHOLE, KeptCalls, keep
from distdoctor.postmortem.flight_recorder import recorder_reader
from distdoctor.postmortem.flight_recorder.entry_columns import (
    COMPLETED,
    SCHEDULED,
    STARTED,
)
from distdoctor.postmortem.flight_recorder.recorder_files import rank_of
from distdoctor.postmortem.job_evidence import DUMP, Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.readers import Reader
from distdoctor.postmortem.temporary_folder import temporary_folder

KIND = "columns of flight recorder dumps"

MEMORY_MB = 4_000
"""That DuckDB may take, and no more than `_SHARE` of what is free; what does not fit
goes to a temporary folder."""

_SHARE = 0.6
_NAME = re.compile(rf"(?:{'|'.join(TABLES)})-[0-9a-f]{{16}}\.parquet")
_FILES_AT_ONCE = 512
_MOST_LEFT_OUT = 10_000
_STATES = {SCHEDULED: "scheduled", STARTED: "started", COMPLETED: "completed"}


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is one of columns that distdoctor wrote.

    Args:
        name: Its name.
        head: Its first bytes.
    """
    return head.startswith(MAGIC) and _NAME.fullmatch(name) is not None


def read(
    leavings: Sequence[Leaving], evidence: Evidence, most_whole: int = MOST_WHOLE
) -> None:
    """Read columns into the evidence.

    Args:
        leavings: Parquet files; those of others are left out.
        evidence: What they tell is added to it.
        most_whole: Calls that are all looked at.
    """
    try:
        connected().close()
    except LeavingsMissing as error:
        evidence.unreadable += [(one.path, str(error)) for one in leavings]
        return
    with temporary_folder() as temporary:
        tables = _tables(leavings, evidence)
        if not tables:
            return
        shown = {one.place: one.path for one in leavings}
        paths = [path for listed in tables.values() for path in listed]
        free = int(psutil.virtual_memory().available * _SHARE)
        memory = f"{min(MEMORY_MB, free >> 20)}MB"
        connection = connected(memory, str(temporary), paths)
        try:
            _read(connection, tables, temporary, evidence, most_whole)
            evidence.sources += [SourceRead(shown[path], KIND, DUMP) for path in paths]
        except Exception as error:  # noqa: BLE001 - of a hostile file anything may come
            stated = " ".join(str(error).split())[:300]
            evidence.unreadable += [(shown[path], stated) for path in paths]
        finally:
            connection.close()


def _tables(leavings: Sequence[Leaving], evidence: Evidence) -> dict[str, list[str]]:
    """By table, the files of whole parts."""
    import duckdb

    parts: dict[str, dict[str, Leaving]] = {}
    connection = connected()
    for leaving in leavings:
        try:
            rows = connection.execute(
                "SELECT key::VARCHAR, value::VARCHAR FROM parquet_kv_metadata(?)",
                [leaving.place],
            ).fetchall()
        except duckdb.Error as error:
            evidence.unreadable.append((leaving.path, str(error)[:200]))
            continue
        stated = {str(key): str(value) for key, value in rows}
        if stated.get("distdoctor") != SCHEMA:
            evidence.left_out.append((leaving.path, "it holds no columns of calls"))
            continue
        parts.setdefault(stated.get("part", ""), {})[stated.get("tab", "")] = leaving
    connection.close()
    found: dict[str, list[str]] = {}
    for part in parts.values():
        lacking = [name for name in TABLES if name not in part]
        for name, leaving in part.items():
            if lacking:
                why = f"of its part there is no table of {', '.join(lacking)}"
                evidence.unreadable.append((leaving.path, why))
            elif name in TABLES:
                found.setdefault(name, []).append(leaving.place)
    return found


def _read(
    connection: Any,
    tables: dict[str, list[str]],
    temporary: Path,
    evidence: Evidence,
    most_whole: int,
) -> None:
    kept = keep(connection, tables, most_whole)
    rings = list(_rings(connection, temporary))
    recorder_reader.read([ring.leaving for ring in rings], evidence)
    _tell(kept, rings, evidence)


def _tell(kept: KeptCalls, rings: Sequence[_Ring], evidence: Evidence) -> None:
    if not kept.is_part:
        return
    total = sum(ring.calls for ring in rings)
    evidence.remarks.append(
        f"of {total:,} calls, {kept.calls:,} were looked at one by one: the others "
        "were made alike by all, and are complete"
    )
    if kept.without_lines:
        names = ", ".join(kept.without_lines[:8])
        evidence.remarks.append(
            f"ranks call from many different lines in group {names}: lines were not "
            "compared there"
        )
    read_in = {
        source.path
        for source in evidence.sources
        if source.kind == recorder_reader.KIND
    }
    for ring in rings:
        rank = rank_of(ring.leaving.path)
        if rank is not None and ring.leaving.path in read_in:
            evidence.pauses[rank] = ring.pause_ns


@dataclass(frozen=True, slots=True)
class _Ring:
    """What was kept of a file, as a dump.

    Attributes:
        leaving: The dump; its path is that of the file that was written as columns.
        calls: That the file had.
        pause_ns: The longest time between two of them.
    """

    leaving: Leaving
    calls: int
    pause_ns: int


def _rings(connection: Any, temporary: Path) -> Iterator[_Ring]:
    kinds = {
        number: json.loads(raw)
        for number, raw in connection.execute(
            "SELECT DISTINCT kind, raw FROM kinds SEMI JOIN kept USING (kind)"
        ).fetchall()
    }
    frames = {
        number: [
            {"name": function, "filename": file, "line": line}
            for file, line, function in json.loads(places)
        ]
        for number, places in connection.execute(
            "SELECT DISTINCT chain, places FROM chains SEMI JOIN kept USING (chain)"
        ).fetchall()
    }
    members = dict(
        connection.execute("SELECT DISTINCT members, ranks FROM members").fetchall()
    )
    files = connection.execute(
        "SELECT file, path, head, calls, first_record, last_record, pause_ns "
        "FROM files ORDER BY file"
    ).fetchall()
    for start in range(0, len(files), _FILES_AT_ONCE):
        some = files[start : start + _FILES_AT_ONCE]
        entries = _entries(connection, some[0][0], some[-1][0], kinds, frames)
        for file, path, head, calls, first, last, pause_ns in some:
            mine = entries.get(file, [])
            if last - first < calls:  # no gaps: the reader would take what is left out
                for number, entry in enumerate(mine, first):  # for calls of a ring
                    entry["record_id"] = number
            top = _top(msgspec.convert(json.loads(head), Head), mine, members)
            data = _as_json(top)
            copy = temporary / f"{file}.dump"
            copy.write_bytes(data)
            leaving = Leaving(path, len(data), str(copy))
            yield _Ring(leaving, calls, pause_ns)


def _as_json(top: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(top)
    except UnicodeEncodeError:  # a name that is no text
        return msgspec.json.encode(as_text(top))


_ENTRY = (
    *("file", "record", "kind", "chain", "state", "retired"),
    *("created_ns", "ended_ns", "timeout_ms", "sequence"),
)


def _entries(
    connection: Any,
    first: int,
    last: int,
    kinds: Mapping[int, Any],
    frames: Mapping[int, Any],
) -> dict[int, list[dict[str, Any]]]:
    """The entries of some files, by file, as a dump has them."""
    columns = connection.execute(
        f"SELECT {', '.join(_ENTRY)} FROM kept "  # noqa: S608 - our own names
        "WHERE file BETWEEN ? AND ? ORDER BY file, record",
        [first, last],
    ).fetchnumpy()
    found: dict[int, list[dict[str, Any]]] = {}
    values = [columns[name].tolist() for name in _ENTRY]
    for row in zip(*values, strict=True):
        file, record, kind, chain, state, retired = row[:6]
        created, ended, timeout, sequence = row[6:]
        group, name, ins, outs, in_types, out_types, is_p2p = kinds[kind]
        found.setdefault(file, []).append(
            {
                "frames": frames.get(chain, []),
                "record_id": record,
                "pg_id": 0,
                "process_group": tuple(group),
                "collective_seq_id": sequence,
                "p2p_seq_id": sequence,
                "profiling_name": name,
                "time_created_ns": created,
                "input_sizes": ins,
                "input_dtypes": in_types,
                "output_sizes": outs,
                "output_dtypes": out_types,
                "state": _STATES.get(state, "scheduled"),
                "time_discovered_completed_ns": ended or None,
                "retired": retired,
                "timeout_ms": timeout,
                "is_p2p": is_p2p,
            }
        )
    return found


def _top(
    head: Head, entries: list[dict[str, Any]], members: Mapping[str, str]
) -> dict[str, Any]:
    for entry in entries:
        number = head.numbers.get(entry["process_group"][0], "")
        entry["pg_id"] = int(number) if number.isdigit() else number
    top: dict[str, Any] = {
        "version": head.version,
        "pg_config": {
            name: {"name": name, "desc": stated, "ranks": members.get(listed, "")}
            for name, stated, listed in head.groups
        },
        "pg_status": {
            key: {"last_enqueued_collective": value}
            for key, value in head.enqueued.items()
        },
    }
    if head.has_entries:
        rest = repeat(None, min(head.left_out, _MOST_LEFT_OUT))
        top["entries"] = [*entries, *rest]
    return top


READER = Reader(KIND, recognises, read)
