"""How files of a record are opened and decoded: the one way, for a record is anybody's.

What stands under a name that the house knows may be a pipe, a device or a link to
somewhere else, have any length, and say anything.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

LARGEST_TEXT = 64 * 1024 * 1024
"""Bytes of a file of texts (JSON) that are read; what jobs write is far less."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""What Python writes of names that are no Unicode, and msgspec refuses."""

Decoded = TypeVar("Decoded")


def opened(path: Path) -> IO[bytes]:
    """Open a file of a record for reading.

    Args:
        path: The file; no link is followed to it.

    Returns:
        The file, at its beginning. The caller closes it.

    Raises:
        FileNotFoundError: There is none.
        OSError: It is no regular file, or may not be read; the text says it.
    """
    try:
        number = os.open(path, _FLAGS)
    except ValueError as error:  # a name with a null in it
        raise OSError(str(error)) from error
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, a socket, or no right to it
        what = _kind(path)
        raise OSError(f"it is {what}" if what else error.strerror) from error
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(f"it is {_kind(path) or 'no regular file'}")
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def is_regular(path: Path) -> bool:
    """Whether a file can be opened by `opened`, as far as its kind goes.

    Args:
        path: The file.

    Returns:
        False also where there is none.
    """
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def content(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """All that a file holds.

    Args:
        path: The file.
        most: Bytes that it may have.

    Returns:
        Its bytes.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read, or is larger.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(f"it is larger than {most} bytes")
        return file.read(most)


def decoded(
    data: bytes | msgspec.Raw, kind: type[Decoded], names: bool = False
) -> Decoded:
    """What a text of JSON tells, as a value of a type: strictly, whatever it holds.

    Args:
        data: The text, in UTF-8.
        kind: The type, as msgspec knows them.
        names: Whether it may hold names that are no Unicode, as jobs write them.

    Returns:
        The value.

    Raises:
        ValueError: It is no JSON, or not of that type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        is_typed = isinstance(error, msgspec.ValidationError)
        if is_typed or not names or not _HALF_PAIR.search(bytes(data)):
            raise
    try:
        value: Any = json.loads(bytes(data), parse_constant=_no_number)
        return msgspec.convert(value, kind)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _kind(path: Path) -> str:
    """What stands under a name that is no regular file; empty: it is one."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "")
    except OSError:
        return ""
