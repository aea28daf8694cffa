"""Makes and opens the files and folders of a record, which are their owner's alone.

Whatever the umask says, folders have mode 0700 and files 0600: a record holds lines of
the user's source, and what the job printed. No link is followed, neither in the place
of a file nor in that of its folder, and nothing is written into a folder in which
others may put files: they could lead what is written elsewhere.

Only the standard library is used, for this runs inside the job as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sharing_problem(folder: Path) -> str:
    """Who else may write into a folder, as the rest of a sentence; empty: nobody.

    Args:
        folder: A folder; if it is a link, what it leads to counts.

    Raises:
        OSError: It cannot be looked at.
    """
    return _problem(folder.stat())


def open_private(path: Path, flags: int, below: int = 1) -> int:
    """Open, or make, a file that only its owner may read and write.

    Args:
        path: The file.
        flags: As for `os.open`; the descriptor is closed when another program takes the
            process.
        below: How many of the folders above it belong to the record: they have to be
            the user's alone, and are not followed if they are links.

    Returns:
        The descriptor.

    Raises:
        OSError: It cannot be opened; or it is a link, no regular file, or somebody
            else's; or others may write into its folder.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait
    with _opened(path.parent, below) as folder:
        number = os.open(_inside(folder, path.name), flags, _FILE_MODE)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is no regular file of this user's")
        if stat.S_IMODE(status.st_mode) != _FILE_MODE:
            os.fchmod(number, _FILE_MODE)
    except OSError:
        os.close(number)
        raise
    return number


def make_private_folder(path: Path, below: int = 1) -> Path:
    """Make a folder that only its owner may use, in a folder of that kind.

    Args:
        path: The folder; it may be there already.
        below: As for `open_private`; 0: it may be made in a folder of any kind.

    Returns:
        The same path.

    Raises:
        OSError: It cannot be made; or it is a link, no folder, or somebody else's.
    """
    with _opened(path.parent, below) as parent:
        inside = _inside(parent, path.name)
        with suppress(FileExistsError):
            os.mkdir(inside, _FOLDER_MODE)  # noqa: PTH102 - it is no path of the user's
        folder = os.open(inside, _FOLDER_FLAGS)
    try:
        _require_private(folder, path)
        os.chmod(_inside(folder), _FOLDER_MODE)  # noqa: PTH101 - under a strict umask
    finally:
        os.close(folder)
    return path


def append_line(path: Path, text: str, below: int = 1) -> None:
    """Add a line to a private file that processes share, by one write.

    Args:
        path: The file; it is made if it is not there.
        text: The line, without its end.
        below: As for `open_private`.

    Raises:
        OSError: It cannot be written.
    """
    number = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, below)
    try:
        os.write(number, f"{text}\n".encode())  # so that lines do not mix
    finally:
        os.close(number)


def write_private(path: Path, data: bytes, below: int = 1) -> None:
    """Write a private file that is not there yet.

    Args:
        path: The file.
        data: What is to be in it.
        below: As for `open_private`.

    Raises:
        OSError: It is there already, or cannot be written whole.
    """
    number = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, below)
    with open(number, "wb") as file:  # noqa: PTH123
        file.write(data)


def replace_private(path: Path, data: bytes, below: int = 1) -> None:
    """Put a private file in the place of another, whole or not at all.

    Args:
        path: The file.
        data: What is to be in it.
        below: As for `open_private`.

    Raises:
        OSError: It cannot be written; what was there before is still there.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with suppress(OSError):
        draft.unlink()  # of a process that had this number and was killed
    try:
        write_private(draft, data, below)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _problem(status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        return "belongs to another user, who may write to it"
    if status.st_mode & _OTHERS_WRITE:
        return f"may be written to by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


@contextmanager
def _opened(folder: Path, below: int) -> Iterator[int]:
    """The folder's descriptor; its last parts are opened one in the other."""
    parts = folder.parts[len(folder.parts) - below + 1 :] if below > 1 else ()
    top = folder
    for _ in parts:
        top = top.parent
    number = os.open(top, _FOLDER_FLAGS if below else _FOLDER_FLAGS & ~os.O_NOFOLLOW)
    try:
        if below:
            _require_private(number, top)
        for part in parts:
            top /= part
            inner = os.open(_inside(number, part), _FOLDER_FLAGS)
            os.close(number)
            number = inner
            _require_private(number, top)
        yield number
    finally:
        os.close(number)


def _require_private(number: int, folder: Path) -> None:
    if problem := _problem(os.fstat(number)):
        raise PermissionError(f"{folder} {problem}")


def _inside(folder: int, name: str = "") -> str:
    """A name in an open folder, or the folder itself (Linux).

    The argument `dir_fd` would do the same, but those who hear of opened files, such as
    an audit hook, are not told of it.
    """
    return f"/proc/self/fd/{folder}/{name}"
