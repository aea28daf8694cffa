"""Fetches files that lie far away (`s3://…`, `gs://…`, `https://…`), by fsspec.

Readers want files that they can open again, seek in and give to other processes. So the
beginnings of all files are fetched into a temporary folder, by several threads, and the
rest of those alone that turn out to tell of a job.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.temporary_folder import temporary_folder

_IS_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::)")
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]*=[^\s'\"]*")
_SECRET = re.compile(
    r"(?i)\b((?:aws_)?(?:secret|access)\w*key\w*|\w*token|password|passwd|sig"
    r"|signature|authorization)(['\"]?\s*[=:]\s*['\"]?)[^\s'\",}&]+"
)

_THREADS = 8
_BLOCK = 4 << 20
_BEGINNING = 128 << 10  # small dumps and stacks whole, by one request
_ROOM_LEFT = 1 << 30  # that the disk of the temporary folder keeps free
_LONGEST_REASON = 200


def is_remote(path: str) -> bool:
    """Whether a path is an address that fsspec reads, and not one of this machine.

    Args:
        path: As the user gave it.
    """
    return _IS_REMOTE.match(path) is not None


def without_secrets(text: str) -> str:
    """A text in which no address tells who may read it.

    >>> without_secrets("https://me:pass@host/a?X-Amz-Signature=ab: gone")
    'https://host/a gone'

    Args:
        text: An address, or a message with some.
    """
    text = _QUERY.sub(r"\1", _USER.sub("", text))
    return _SECRET.sub(r"\1\2…", text)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on another file system.

    Attributes:
        system: Of fsspec's.
        place: Its path there.
        address: As a report names it.
        size: Bytes, -1 if nothing tells.
    """

    system: Any
    place: str
    address: str
    size: int


def listed(address: str, most: int) -> list[RemoteFile]:
    """The files at an address and below it.

    Args:
        address: Of a file or a folder.
        most: Files.

    Returns:
        The files in the order of their names.

    Raises:
        LeavingsMissing: There is nothing, it cannot be listed, there are too many
            files, or what reads such addresses is not installed.
    """
    shown = without_secrets(address)
    try:
        system, inside = _found(address, shown)
    except LeavingsMissing:
        raise
    except Exception as error:  # noqa: BLE001 - of a driver anything may come
        raise LeavingsMissing(f"{shown}: {_reason(error)}") from None
    files = [
        RemoteFile(system, name, _named(system, name, shown), _size(one))
        for name, one in sorted(inside.items())
        if one.get("type") == "file" and not name.endswith("/")
    ]
    if not files:
        raise LeavingsMissing(
            f"{shown}: there is no such file or folder; give one that is there"
        )
    if len(files) > most:
        raise LeavingsMissing(f"{shown}: more than {most:,} files: name a folder in it")
    return files


def _found(address: str, shown: str) -> tuple[Any, dict[str, Any]]:
    """The file system of an address, and what it says of each file there."""
    scheme = address.partition("::")[0].partition(":")[0]
    try:
        # Here, so that those who read local files need not have it.
        from fsspec.core import url_to_fs
    except ImportError:
        raise LeavingsMissing(
            f"{shown}: files far away are read by fsspec, which is not installed: "
            "pip install 'distdoctor[remote]', and the driver of your storage, such as "
            "s3fs"
        ) from None
    try:
        system, place = url_to_fs(address)
    except ImportError as error:
        raise LeavingsMissing(
            f"{shown}: the driver of fsspec for {scheme}:// is not installed: "
            f"{_reason(error)}"
        ) from None
    except ValueError:
        raise LeavingsMissing(
            f"{shown}: fsspec knows no file system {scheme}://; copy the files here, "
            "and give their folder"
        ) from None
    try:
        found = system.info(place)
        if found["type"] == "directory" or address.endswith("/"):
            return system, system.find(place, detail=True)
    except FileNotFoundError:
        return system, {}
    return system, {place: found}


def _named(system: Any, name: str, shown: str) -> str:
    with suppress(AttributeError, TypeError, ValueError):  # a driver may not know how
        return without_secrets(system.unstrip_protocol(name))
    return f"{shown.partition('://')[0]}://{without_secrets(name).lstrip('/')}"


def _size(found: Any) -> int:
    size = found.get("size")
    return size if isinstance(size, int) else -1


def _reason(error: BaseException) -> str:
    stated = " ".join(str(error).split()) or type(error).__name__
    return without_secrets(stated)[:_LONGEST_REASON]


class FetchedFiles:
    """Copies of remote files in a temporary folder, which lives as long as this.

    It is a context manager: at its end the folder is gone, whatever has happened.
    """

    def __init__(self) -> None:
        self._folder = ""
        self._stop = Event()
        self._pool: ThreadPoolExecutor | None = None
        self._copies: dict[str, RemoteFile] = {}
        self._count = 0
        self._cleaning = ExitStack()

    def __enter__(self) -> FetchedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        try:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
        finally:
            self._cleaning.close()

    def beginnings(self, files: Sequence[RemoteFile]) -> Iterator[tuple[str, str]]:
        """Fetch the beginning of each file, several at once.

        Args:
            files: The files.

        Yields:
            For each, in their order, its copy and why there is none; one is empty.
        """
        copies = [self._copy_of(file) for file in files]
        yield from zip(copies, self._each(self._fetch_beginning, copies), strict=True)

    def whole(self, copies: Sequence[str]) -> dict[str, str]:
        """Fetch what is missing of files of which the beginning is there.

        Args:
            copies: Paths of copies; others are passed over.

        Returns:
            By copy, why it cannot be had; nothing of the others.
        """
        lacking = [
            copy
            for copy in copies
            if (file := self._copies.get(copy)) and not self._is_whole(copy, file)
        ]
        whys = self._each(self._fetch_whole, lacking)
        return {copy: why for copy, why in zip(lacking, whys, strict=True) if why}

    def forget(self, copies: Sequence[str]) -> None:
        """Remove copies that are not needed any more.

        Args:
            copies: Paths of copies; others are passed over.
        """
        for copy in copies:
            if self._copies.pop(copy, None) is not None:
                Path(copy).unlink(missing_ok=True)

    def _copy_of(self, file: RemoteFile) -> str:
        if not self._folder:
            self._folder = str(self._cleaning.enter_context(temporary_folder()))
        self._count += 1
        copy = str(Path(self._folder, str(self._count)))
        self._copies[copy] = file
        return copy

    def _each(
        self, fetch: Callable[[str], None], copies: Sequence[str]
    ) -> Iterator[str]:
        if copies and self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS)

        def tried(copy: str) -> str:
            try:
                fetch(copy)
            except Exception as error:  # noqa: BLE001 - of a driver anything may come
                return _reason(error)
            return ""

        yield from self._pool.map(tried, copies) if self._pool else ()

    def _is_whole(self, copy: str, file: RemoteFile) -> bool:
        with suppress(OSError):
            return os.path.getsize(copy) == file.size or file.size < 0  # noqa: PTH202
        return False

    def _fetch_beginning(self, copy: str) -> None:
        file = self._copies[copy]
        if file.size < 0:
            self._fetch_whole(copy)
        elif file.size <= _BEGINNING:
            self._write(copy, iter((file.system.cat_file(file.place),)))
        else:
            start = file.system.cat_file(file.place, start=0, end=_BEGINNING)
            self._write(copy, iter((start[:_BEGINNING],)))

    def _fetch_whole(self, copy: str) -> None:
        file = self._copies[copy]
        with file.system.open(file.place, "rb", block_size=_BLOCK) as source:
            self._write(copy, iter(lambda: source.read(_BLOCK), b""))

    def _write(self, copy: str, blocks: Iterator[bytes]) -> None:
        with open(copy, "wb") as target:  # noqa: PTH123
            for block in blocks:
                if self._stop.is_set():
                    raise InterruptedError("it was given up")
                if shutil.disk_usage(self._folder).free < len(block) + _ROOM_LEFT:
                    raise OSError("there is no room for it in the temporary folder")
                target.write(block)
