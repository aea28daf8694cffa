"""Trims a record to what was written, once nobody writes it any more.

Journals take their whole space when they are opened (see `writer`), so that a full disk
cannot end the job. Only the standard library is used: who ends a job in distdoctor's
place, after distdoctor was killed, trims its record too.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.format import (
    HEADER,
    HEADER_BYTES,
    HEADER_FIELDS,
    MAGIC,
    RECORD_BYTES,
    offset_of,
)
from distdoctor.journal.layout import BOARDS_FOLDER, MASK_KEY_FILE
from distdoctor.journal.private_files import open_private, replace_private

_U64 = struct.Struct("<Q")
_AT_MOST = 1 << 28  # bytes of a journal that is written anew; larger ones are cut


def trim_record(folder: Path) -> None:
    """Trim all journals of a record, and remove what only live ranks need.

    Args:
        folder: The record folder; nobody may write it any more: a rank whose journal is
            cut under it would die of SIGBUS. What cannot be trimmed stays as it is.
    """
    for place, folders, files in os.walk(folder):  # links are not followed
        if BOARDS_FOLDER in folders:
            folders.remove(BOARDS_FOLDER)
            shutil.rmtree(Path(place, BOARDS_FOLDER), ignore_errors=True)
        for name in files:
            if name == MASK_KEY_FILE:
                with suppress(OSError):
                    Path(place, name).unlink()
            if name.endswith(".journal"):
                with suppress(OSError, struct.error):
                    _trim(Path(place, name))


def _trim(path: Path) -> None:
    """Leave out what was not used of a journal's strings and of its ring.

    A ring that has not gone round gets the capacity it has used.
    """
    with open(open_private(path, os.O_RDWR), "r+b") as file:  # noqa: PTH123
        names = (name for name, _ in HEADER_FIELDS)
        fields = dict(zip(names, HEADER.unpack(file.read(HEADER.size)), strict=True))
        strings, tail = fields["strings_bytes"], fields["strings_tail"]
        ring = HEADER_BYTES + strings
        used = min(max(1, fields["head"]), fields["capacity"])
        kept = min(-(-tail // 8) * 8, strings)  # keeps the ring aligned
        size = os.fstat(file.fileno()).st_size
        if fields["magic"] != MAGIC or size < ring + used * RECORD_BYTES:
            return
        if kept == strings and used == fields["capacity"]:
            return
        if HEADER_BYTES + kept + used * RECORD_BYTES <= _AT_MOST:
            pieces = ((0, HEADER_BYTES + kept), (ring, used * RECORD_BYTES))
            data = bytearray(b"".join(_read(file.fileno(), pieces)))
            _U64.pack_into(data, offset_of("capacity"), used)
            _U64.pack_into(data, offset_of("strings_bytes"), kept)
            with suppress(OSError):  # no room for both
                replace_private(path, bytes(data))
                return
        file.seek(offset_of("capacity"))
        file.write(_U64.pack(used))
        file.truncate(ring + used * RECORD_BYTES)


def _read(file: int, pieces: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    for begin, size in pieces:
        data = os.pread(file, size, begin)
        if len(data) != size:
            raise OSError("the journal was cut meanwhile")
        yield data
