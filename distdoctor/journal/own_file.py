"""A file that stays open inside of a job, whatever the job does with its descriptors.

A program that becomes a daemon closes all descriptors that it may have inherited
(`os.closerange`), and ours with them; the next file that it opens gets the number. So
the number is trusted only if what lies behind it is still our file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from distdoctor.journal.private_files import open_private


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
        self._number = open_private(path, flags, below)
        self._identity = _identity(self._number)

    def number(self) -> int:
        """The descriptor, to be used at once.

        Raises:
            OSError: It was closed, and the file is not there any more.
        """
        if not self._is_ours():
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
