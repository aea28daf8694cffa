"""The list of kept records: for people, and as data, `distdoctor.records/1`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from distdoctor.journal.folder import as_text as with_escapes
from distdoctor.journal.kept_records import KeptRecord
from distdoctor.report.json import indented
from distdoctor.report.plain_text import plain

SCHEMA = "distdoctor.records/1"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class RecordData(msgspec.Struct, kw_only=True):
    """One record."""

    folder: str
    started: str  # ISO time
    script: str
    verdict: str  # sick | well | unknown; empty: none was given
    state: str  # kept | running | broken off
    bytes: int  # on the disk
    holds_files: bool  # of the user's, which could not be put back


class RecordList(msgspec.Struct, kw_only=True):
    """All of them. Fields may be added, and none is ever renamed or removed."""

    schema: str = SCHEMA
    folder: str
    records: list[RecordData]  # the latest first


def as_json(records: Sequence[KeptRecord], folder: Path) -> str:
    """The list for machines, with a new line at its end.

    Args:
        records: In the order in which they are told.
        folder: That they lie in.
    """
    told = RecordList(folder=str(folder), records=[_data(one) for one in records])
    return indented(with_escapes(msgspec.to_builtins(told)))


def as_text(records: Sequence[KeptRecord], folder: Path) -> str:
    """The list for people, a line for each, and their sum.

    Args:
        records: In the order in which they are told.
        folder: That they lie in.
    """
    total = size_text(sum(one.size_bytes for one in records))
    noun = "record" if len(records) == 1 else "records"
    summary = f"{len(records)} {noun} in {plain(str(folder))}, {total}\n"
    return "".join(map(as_line, records)) + summary


def as_line(record: KeptRecord) -> str:
    """One record as a line."""
    data = _data(record)
    when = record.started.astimezone().strftime("%Y-%m-%d %H:%M")
    words = data.verdict or "-"
    if data.state != "kept":
        words = data.state
    held = "  (holds files of yours)" if data.holds_files else ""
    size = size_text(data.bytes)
    script = plain(data.script) or "-"
    return f"{when}  {words:10}  {size:>9}  {script}  {plain(data.folder)}{held}\n"


def size_text(size: float) -> str:
    """A number of bytes as people write it.

    >>> size_text(9 * 2**20)
    '9.0 MiB'
    """
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def _data(record: KeptRecord) -> RecordData:
    state = "running" if record.lives else "broken off" if record.broken_off else "kept"
    return RecordData(
        folder=str(record.folder),
        started=record.started.isoformat(timespec="seconds"),
        script=record.script,
        verdict=record.verdict,
        state=state,
        bytes=record.size_bytes,
        holds_files=record.holds_users_files,
    )
