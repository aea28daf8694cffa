"""The tables of a folder of columns, and the Parquet files that hold them.

Whatever numbers stand for is a hash of it, so that parts that were written on different
machines mean the same by the same number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import LeavingsMissing

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA = "distdoctor.columns/1"
MAGIC = b"PAR1"

TABLES: Mapping[str, Mapping[str, str]] = {
    "calls": {
        "file": "BIGINT",  # in which it stands
        "record": "BIGINT",  # running number of the ring
        "channel": "BIGINT",  # what calls meet in: a group, or two of its ranks
        "number": "BIGINT",  # the how-manieth there: of collectives their ordinal
        "sequence": "BIGINT",  # of messages the rank's own, which a batch shares
        "role": "UTINYINT",  # COMPARED, PART, CLOSING or NOT_UNDERSTOOD
        "call": "BIGINT",  # equal if calls can meet: operation, dtypes, elements
        "site": "BIGINT",  # the user's line; of messages always 0
        "kind": "BIGINT",
        "chain": "BIGINT",
        "state": "UTINYINT",  # as in a dump: scheduled, started, completed
        "retired": "BOOLEAN",
        "created_ns": "BIGINT",
        "ended_ns": "BIGINT",
        "timeout_ms": "BIGINT",
    },
    "spans": {  # what a file has of a channel
        "file": "BIGINT",
        "channel": "BIGINT",
        "group_name": "VARCHAR",
        "members": "VARCHAR",  # hash of the list of members; empty: it has none
        "pair": "VARCHAR",  # of messages sender and receiver, by their ranks in it
        "first": "BIGINT",  # number
        "last": "BIGINT",
        "good_to": "BIGINT",  # up to here all is complete, and no number is left out
        "calls": "BIGINT",
    },
    "files": {
        "file": "BIGINT",
        "path": "VARCHAR",
        "head": "VARCHAR",  # JSON: see `Head`
        "calls": "BIGINT",
        "first_record": "BIGINT",
        "last_record": "BIGINT",
        "pause_ns": "BIGINT",  # the longest time between two calls
    },
    "kinds": {"kind": "BIGINT", "raw": "VARCHAR"},  # JSON, as an entry has it
    "chains": {"chain": "BIGINT", "places": "VARCHAR"},  # JSON: file, line, function
    "members": {"members": "VARCHAR", "ranks": "VARCHAR"},  # as in a dump
}
"""By table, its columns and their types in SQL."""

PART, COMPARED, CLOSING, NOT_UNDERSTOOD = 0, 1, 2, 3
"""Roles of a row: PART is a further entry of a call that was made of several, CLOSING
the entry behind messages that were given to the device together."""


class Head(msgspec.Struct):
    """What a dump says beside its calls.

    Attributes:
        version: Of its format.
        groups: Name, description, and hash of the list of members of each.
        enqueued: By the rank's own number of a group, the last collective enqueued.
        numbers: By name of a group, the rank's own number of it.
        left_out: Entries that could not be understood.
        has_entries: Whether it was made with its calls.
    """

    version: str
    groups: list[tuple[str, str, str]]
    enqueued: dict[str, int]
    numbers: dict[str, str]
    left_out: int
    has_entries: bool


def hash_of(text: str | bytes) -> int:
    """A number for a text, the same on all machines; a signed one of 64 bits.

    Args:
        text: Any.
    """
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    digest = blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def as_json(value: Any) -> str:
    """Plain data as JSON, whatever texts it has: half a surrogate pair is escaped.

    Args:
        value: Lists, tuples, dicts with texts as keys, texts and numbers.
    """
    return json.dumps(value, separators=(",", ":"))


def connected(memory: str = "", temporary: str = "", reads: Sequence[str] = ()) -> Any:
    """A database in memory that reaches for nothing by itself.

    Args:
        memory: It may take, such as "4GB"; empty: DuckDB's own limit.
        temporary: The folder to which it may move what does not fit.
        reads: The files that it may read; empty: all.

    Returns:
        A connection of DuckDB.

    Raises:
        LeavingsMissing: DuckDB is not installed.
    """
    try:
        # Here, so that those without such folders need not have it.
        import duckdb
    except ImportError:
        raise LeavingsMissing(
            "folders of columns are written and read by DuckDB, which is not "
            "installed: pip install 'distdoctor[big]'"
        ) from None
    settings: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "preserve_insertion_order": False,
    }
    if memory:
        settings["memory_limit"] = memory
    if temporary:
        settings["temp_directory"] = temporary
    connection: DuckDBPyConnection = duckdb.connect(":memory:", config=settings)
    if reads:
        connection.execute(f"SET allowed_paths = {files_sql(reads)}")
        if temporary:
            connection.execute(f"SET allowed_directories = {files_sql([temporary])}")
        connection.execute("SET enable_external_access = false")
    return connection


def write_table(
    connection: Any,
    folder: Path,
    part: str,
    table: str,
    columns: Mapping[str, NDArray[Any]],
) -> Path:
    """Write one table of a part.

    Args:
        connection: Of `connected`.
        folder: Where; it exists.
        part: What tells the parts apart.
        table: Of `TABLES`.
        columns: Its columns, of one length.

    Returns:
        The file.
    """
    types = TABLES[table]
    rows = {name: columns[name] for name in types}
    listed = ", ".join(f'"{name}"::{kind} AS "{name}"' for name, kind in types.items())
    path = folder / f"{table}-{part}.parquet"
    unfinished = path.with_suffix(".unfinished")
    connection.register("rows", rows)
    connection.execute(
        f"COPY (SELECT {listed} FROM rows) TO '{_quoted(str(unfinished))}' (FORMAT "  # noqa: S608
        "parquet, COMPRESSION zstd, KV_METADATA {distdoctor: '"
        f"{SCHEMA}', part: '{part}', tab: '{table}'" + "})"
    )
    connection.unregister("rows")
    os.replace(unfinished, path)  # noqa: PTH105
    return path


def texts(values: list[str]) -> NDArray[Any]:
    """Texts as a column.

    Args:
        values: One for each row.
    """
    found = np.empty(len(values), object)
    found[:] = [value.encode(errors="replace").decode() for value in values]
    return found


def _quoted(path: str) -> str:
    return path.replace("'", "''")


def files_sql(paths: Sequence[str]) -> str:
    """Files as a list in SQL, such as the argument of `read_parquet`.

    Args:
        paths: Of the files.
    """
    return "[" + ", ".join(f"'{_quoted(path)}'" for path in paths) + "]"
