"""Copies files before the job changes them, so that they can be restored.

Only where several runs of a job are compared: each is to begin with the files that the
first found, and what the user had there before is to be there afterwards. Python tells
of each file before it opens, renames or removes it (audit events); of files of torch's
and of safetensors', which are opened elsewhere, the functions tell that save them.

Nothing is changed that could not be kept: then the job's own call raises.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from distdoctor.journal.environment import FOLDER_VARIABLE, KEEP_VARIABLE
from distdoctor.journal.layout import KEPT_FILE
from distdoctor.journal.private_files import append_line, write_private
from distdoctor.probes.probe import Probe

_ELSEWHERE = ("/dev/", "/proc/", "/sys/")  # no files

_BY_PYTHON = f"{os.sep}__pycache__{os.sep}"


class Keeper:
    """The copies of files that this process has made.

    Attributes:
        on: Whether files are to be copied.
    """

    def __init__(self) -> None:
        self.on = False
        self._folder = ""
        self._left_alone: tuple[str, ...] = ()
        self._known: set[str] = set()
        self._ours: set[str] = set()  # folders that this process made
        self._local = threading.local()

    def begin(self, folder: str) -> None:
        """Copy files from now on, before they are changed."""
        self._folder = folder
        home = os.path.expanduser("~")  # noqa: PTH111 - pathlib takes longer to import
        cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
        records = os.environ.get(FOLDER_VARIABLE) or folder
        ours = tuple(f"{one}{os.sep}" for one in (cache, records, folder))
        self._left_alone = (*_ELSEWHERE, *ours)
        self.on = True

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook: called by Python with each audit event."""
        about = _ABOUT.get(event)
        if about is None or getattr(self._local, "busy", False):
            return
        self._local.busy = True  # what is done here opens files as well
        try:
            about(self, *args)
        finally:
            self._local.busy = False

    def changes(self, file: str) -> None:
        """Called before a file is written by other means than Python's.

        Raises:
            OSError: What is in it could not be kept.
        """
        if file:
            self.heard("distdoctor.save", (file,))

    # --- what happens to files ---

    def _open(self, path: Any, _mode: Any, flags: Any) -> None:
        if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR):
            return
        self._saving(path)

    def _saving(self, path: Any) -> None:
        self._keep(os.path.realpath(os.fsdecode(path)))

    def _rename(self, old: Any, new: Any, old_at: int = -1, new_at: int = -1) -> None:
        source, target = _path(old, old_at), _path(new, new_at)
        if os.path.isdir(source) and not os.path.islink(source):  # noqa: PTH112, PTH114
            if source not in self._ours or os.path.lexists(target):
                raise PermissionError(
                    f"distdoctor cannot keep the folder {source}, so it stays"
                )
            self._ours.add(target)
            self._tell(target, "folder of ours")
            return
        self._keep(source)
        self._keep(target)

    def _remove(self, path: Any, at: int = -1) -> None:
        self._keep(_path(path, at))

    def _truncate(self, path: Any, _length: Any) -> None:
        if not isinstance(path, int):
            self._saving(path)

    def _make_folder(self, path: Any, _mode: Any, at: int = -1) -> None:
        folder = _path(path, at)
        if not os.path.lexists(folder):
            self._ours.add(folder)
            self._tell(folder, "no folder")

    def _remove_folder(self, path: Any, at: int = -1) -> None:
        folder = _path(path, at)
        if os.path.isdir(folder):  # noqa: PTH112
            self._tell(folder, "folder")

    def _link(self, _old: Any, new: Any, *at: int) -> None:
        self._keep(_path(new, at[-1] if at else -1))

    # --- what was there before ---

    def _keep(self, path: str) -> None:
        """Note what is there now, and copy it, unless that was done."""
        if path in self._known or self._is_left_alone(path):
            return
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            self._tell(path, "nothing")
            return
        if stat.S_ISLNK(mode):
            self._tell(path, "link", os.readlink(path))  # noqa: PTH115
        elif stat.S_ISREG(mode):
            self._copy(path)
            self._tell(path, "file")

    def _is_left_alone(self, path: str) -> bool:
        return path.startswith(self._left_alone) or _BY_PYTHON in path

    def _copy(self, path: str) -> None:
        """What another process copied first stays: that was there before."""
        target = f"{self._folder}/{name_of(path)}"
        if os.path.lexists(target):
            return
        draft = f"{target}.{os.getpid()}"
        try:
            write_private(Path(draft), b"", below=2)  # nobody else's, nor a link
            shutil.copy2(path, draft)
            with suppress(FileExistsError):
                os.link(draft, target)
        except OSError as error:
            raise PermissionError(
                f"distdoctor cannot keep a copy of {path} ({error}), so it stays as "
                "it is"
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(draft)  # noqa: PTH108

    def _tell(self, path: str, was: str, link: str = "") -> None:
        """One line in one write, so that those of several processes stay whole."""
        if path in self._known and was != "folder of ours":
            return
        if self._is_left_alone(path):
            return
        self._known.add(path)
        line = json.dumps({"path": path, "was": was, "link": link})
        append_line(Path(self._folder, KEPT_FILE), line, below=2)


_ABOUT: dict[str, Callable[..., None]] = {
    "distdoctor.save": Keeper._saving,
    "open": Keeper._open,
    "os.rename": Keeper._rename,
    "os.remove": Keeper._remove,
    "os.truncate": Keeper._truncate,
    "os.mkdir": Keeper._make_folder,
    "os.rmdir": Keeper._remove_folder,
    "os.symlink": Keeper._link,
    "os.link": Keeper._link,
}
"""By audit event; the arguments are those of the event.

Source: https://docs.python.org/3/library/audit_events.html
"""


def name_of(path: str) -> str:
    """The name under which a file's copy is stored."""
    return blake2b(os.fsencode(path), digest_size=16).hexdigest()


def _path(path: Any, at: int) -> str:
    """A path without links but for its last part; `at` is the folder it is in."""
    text = os.fsdecode(path)
    if at >= 0 and not os.path.isabs(text):  # noqa: PTH117
        text = f"{os.readlink(f'/proc/self/fd/{at}')}/{text}"  # noqa: PTH115
    folder, name = os.path.split(os.path.abspath(text))  # noqa: PTH100
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


KEEPER = Keeper()


def keep_files() -> None:
    """Install the audit hook before the program's first line, if asked for."""
    folder = os.environ.get(KEEP_VARIABLE)
    if folder:
        KEEPER.begin(folder)
        sys.addaudithook(KEEPER.heard)


PROBE = Probe(install=keep_files)
