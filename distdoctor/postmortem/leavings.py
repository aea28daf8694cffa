"""Finds the files that a job has left, and opens them whatever packs them.

Nothing is trusted: special files are never opened, a link is not followed out of a
folder twice, and what a file unpacks to is bounded by whoever reads it. Files on other
file systems are fetched first, and look like local ones from then on.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.remote_files import (
    FetchedFiles,
    is_remote,
    listed,
)

HEAD_BYTES = 65_536
"""As much of a file as its kind is told by."""

DAMAGES = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a file raises that cannot be read, or is packed and damaged."""

_MOST_FILES = 200_000
_AT_ONCE = 8_192


@dataclass(frozen=True, slots=True)
class Leaving:
    """A file that may say something about a job.

    Attributes:
        path: Where it lies, as the reader of a report can find it.
        size: Bytes it takes; packed, if it is.
        copy: The file that holds what is in it, if that is not at `path`.
        why: Why it cannot be read, if that is known.
    """

    path: str
    size: int
    copy: str = ""
    why: str = ""

    @property
    def place(self) -> str:
        """Where its content lies on this machine."""
        return self.copy or self.path

    @property
    def name(self) -> str:
        """Its name, without the ending of a packer."""
        name = os.path.basename(self.path)  # noqa: PTH119 - of thousands of files
        stem, dot, ending = name.rpartition(".")
        return stem if dot and ending in {"gz", "bz2", "xz"} else name

    @property
    def is_packed(self) -> bool:
        """Whether it must be unpacked; so it is as well if it cannot be read."""
        try:
            with open(self.place, "rb") as file:  # noqa: PTH123
                return file.read(6).startswith(tuple(_PACKERS))
        except OSError:
            return True

    def open(self) -> IO[bytes]:
        """Open it for reading, unpacked; what packs it is told by its first bytes.

        Raises:
            OSError: It cannot be read.
        """
        if self.why:
            raise OSError(self.why)
        file = open(self.place, "rb", buffering=0)  # noqa: PTH123, SIM115 - the caller's
        try:
            start = file.read(6)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        for magic, opener in _PACKERS.items():
            if start.startswith(magic):
                file.close()
                unpacked: IO[bytes] = opener(self.place)
                return unpacked
        return io.BufferedReader(file)

    def head(self, most: int = HEAD_BYTES) -> bytes:
        """The first bytes, unpacked.

        Args:
            most: Bytes, at most.

        Raises:
            OSError: It cannot be read, or what it is packed with is damaged.
        """
        found = b""
        try:
            with self.open() as file:
                if not self.copy:
                    return file.read(most)
                while len(found) < most and (more := file.read(_AT_ONCE)):
                    found += more
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            if not self.copy or not found:  # of a remote file there is a part only
                raise OSError(f"damaged: {error}") from error
        return found[:most]


_PACKERS: dict[bytes, Callable[[str], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""By the first bytes of a file, what unpacks it."""


def find(
    paths: Sequence[str], fetched: FetchedFiles | None = None
) -> Iterator[Leaving]:
    """All regular files at these paths, and below them if they are folders.

    Args:
        paths: Of files and folders; addresses such as s3://bucket/job are read by
            fsspec.
        fetched: Takes the beginnings of remote files, of which `whole` fetches the
            rest; None: only this machine is looked at.

    Yields:
        Each file once, in the order of the paths, and of names within a folder.

    Raises:
        LeavingsMissing: A path does not exist, or there are too many files.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if fetched is not None and is_remote(path):
            files = listed(path, _MOST_FILES)
            for file, (copy, why) in zip(files, fetched.beginnings(files), strict=True):
                yield Leaving(file.address, max(file.size, 0), copy, why)
            continue
        if not os.path.lexists(path):
            raise LeavingsMissing(
                f"{path}: there is no such file or folder; give one that is there"
            )
        for leaving in _below(Path(path), seen):
            if len(seen) > _MOST_FILES:
                raise LeavingsMissing(
                    f"more than {_MOST_FILES:,} files: name the folder that the job "
                    "wrote to"
                )
            yield leaving


def whole(
    leavings: Sequence[Leaving], fetched: FetchedFiles
) -> tuple[list[Leaving], list[tuple[str, str]]]:
    """Files with all that is in them here.

    Args:
        leavings: As they were found.
        fetched: What they were found with.

    Returns:
        The files, and path and reason of those that cannot be read.
    """
    whys = fetched.whole([one.copy for one in leavings if one.copy])
    stated = [(one, one.why or whys.get(one.copy, "")) for one in leavings]
    here = [
        replace(one, size=os.path.getsize(one.copy)) if one.copy else one  # noqa: PTH202
        for one, why in stated
        if not why
    ]
    return here, [(one.path, why) for one, why in stated if why]


def _below(path: Path, seen: set[tuple[int, int]]) -> Iterator[Leaving]:
    """Files at a path and below it; what cannot be looked at is passed over."""
    try:
        found = path.stat()
    except OSError:
        return
    known = found.st_dev, found.st_ino
    if known in seen:
        return
    if stat.S_ISREG(found.st_mode):
        seen.add(known)
        yield Leaving(str(path), found.st_size)
    elif stat.S_ISDIR(found.st_mode):
        seen.add(known)
        try:
            inside = sorted(path.iterdir())
        except OSError:
            return
        for each in inside:
            yield from _below(each, seen)
