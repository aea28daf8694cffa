"""Records files that a rank creates or overwrites, and whether it reads them later.

Python tells of each file that it opens (an audit event); torch's own files are opened
elsewhere and are no part of this. Only what the rank's own process opens is noted, and
nothing of what importing, compiling or saving checkpoints does.

Source of the cost: measured, 0.5 µs for each audit event.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from distdoctor.model.observations.checkpoints import ReadBack, Written
from distdoctor.probes.call_sites import frame_above, is_users, text_of
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_PATHS = 500
_MOST_TIMES = 3  # that one path is noted for writing, and for reading

_ELSEWHERE = ("/dev/", "/proc/", "/sys/")  # no files

_PROGRAMS = (".py", ".pyc", ".so")

_OWN_WAYS = tuple(
    part.replace("/", os.sep)
    for part in (
        "importlib",
        "/torch/serialization.py",  # checkpoints are another matter
        "/torch/distributed/checkpoint/",
        "/safetensors/",
        "/torch/_inductor/",  # these guard their caches
        "/torch/_dynamo/",
        "/torch/utils/cpp_extension.py",
        "/torch/utils/_triton.py",
        "/triton/",
        "/filelock/",
    )
)

_BEGUN_S = time.time()
_MARGIN_S = 60.0  # ranks do not start at the same moment

_FRAMES = 60  # looked through for one of them


class Files:
    """Follows the files that this process writes and reads."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._written: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._locked = self._slept = False
        self._busy = False

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook: called by Python with each audit event."""
        if event == "open" and len(args) == 3:
            self._opening(*args)
        elif event in {"fcntl.flock", "fcntl.lockf"}:
            self._locked = True
        elif event == "time.sleep":
            self._slept = True

    def _opening(self, path: Any, mode: Any, flags: Any) -> None:
        if self._busy or RECORDER.writer is None or isinstance(path, int):
            return
        if RECORDER.lock.locked():  # a file of ours, or for our own import
            return
        self._busy = True  # what is done here opens files as well
        try:
            _noted(self, path, mode, flags)
        finally:
            self._busy = False

    def opening(self, path: Any, mode: str | None, flags: int) -> None:
        """Called before a file is opened."""
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        if name.startswith((*_ELSEWHERE, str(RECORDER.folder))):
            return
        if name.endswith(_PROGRAMS):
            return
        if name.endswith(".lock"):
            self._locked = True
            return
        if self._writes_anew(mode, flags):
            self._note(self._written, name)
        elif not flags & (os.O_WRONLY | os.O_RDWR) and os.path.isfile(name):  # noqa: PTH113
            self._note(self._read, name)

    @staticmethod
    def _writes_anew(mode: str | None, flags: int) -> bool:
        """Whether what was in the file is thrown away; not if only one can make it."""
        if flags & os.O_EXCL or (mode is not None and "x" in mode):
            return False
        return bool(flags & os.O_TRUNC)

    def _note(self, known: dict[str, int], name: str) -> None:
        times = known.get(name, 0)
        if times >= _MOST_TIMES or (not times and len(known) >= _MOST_PATHS):
            return
        if known is self._read and not _is_new(name):
            return
        site = _site()
        if site is None:
            return
        known[name] = times + 1
        if known is self._written:
            observation: Any = Written(path=name, times=times + 1, locked=self._locked)
        else:
            waited = self._slept or self._locked
            observation = ReadBack(path=name, waited=waited)
        RECORDER.observe(observation, site)


def _is_new(name: str) -> bool:
    """Whether a rank of this job may have made a file: it is not older."""
    return os.stat(name).st_mtime >= _BEGUN_S - _MARGIN_S  # noqa: PTH116


FILES = Files()

_noted = harmless(Files.opening)


def install() -> None:
    """Install the audit hook right after `import torch`.

    Data are often made before a rank joins.
    """
    sys.addaudithook(FILES.heard)


def _site() -> str | None:
    """The user's line that opens a file; None if it is none of ours to judge."""
    frame, site = frame_above(2), ""
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if any(part in code.co_filename for part in _OWN_WAYS):
            return None
        if not site and is_users(code.co_filename):
            site = text_of(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return site or None


PROBE = Probe(install=install, reset=FILES.reset)
