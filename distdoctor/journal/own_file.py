"""A file that stays open inside of a job, whatever the job does with its descriptors.

A program that becomes a daemon closes all descriptors that it may have inherited
(`os.closerange`), and ours with them; the next file that it opens gets the number. So
the number is trusted only if what lies behind it is still our file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distdoctor.journal.private_files import open_private

_FIRST = 64
"""From here on are the numbers of our descriptors, while there are enough."""


@contextmanager
def high_numbers() -> Iterator[None]:
    """Inside of it, files get descriptors that leave the low numbers to the job.

    Also those that are made from others, as `mmap` does. A program's own files have the
    numbers then that they have without us.
    """
    taken: list[int] = []
    with suppress(OSError):  # there are no more of them: then ours are as they come
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while taken[-1] < _FIRST - 1:
            taken.append(os.dup(taken[0]))
    if taken and taken[-1] < _FIRST - 1:
        _close(taken)
    try:
        yield
    finally:
        _close(taken)


def _close(numbers: list[int]) -> None:
    while numbers:
        os.close(numbers.pop())


class OwnFile:
    """An open file, found again by its name if its descriptor was closed.

    Args:
        path: The file.
        flags: As for `open_private`.
        below: Likewise.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, flags: int, below: int = 1) -> None:
        self._path, self._mode = path, flags & os.O_ACCMODE | flags & os.O_APPEND
        self._below = below
        with high_numbers():
            self._number = open_private(path, flags, below)
        self._identity = _identity(self._number)

    def number(self) -> int:
        """The descriptor, to be used at once.

        Raises:
            OSError: It was closed, and the file is not there any more.
        """
        if not self._is_ours():
            with high_numbers():
                number = open_private(self._path, self._mode, self._below)
            if _identity(number) != self._identity:
                os.close(number)
                raise FileNotFoundError(f"{self._path} is another file now")
            self._number = number
        return self._number

    def _is_ours(self) -> bool:
        try:
            return _identity(self._number) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless its number is somebody else's by now."""
        if self._is_ours():
            os.close(self._number)


def _identity(number: int) -> tuple[int, int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)
