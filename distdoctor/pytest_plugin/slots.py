"""Slots for ranks, and GPUs, shared by all test runs of one user on a machine.

A rank takes a slot. Every pytest process of a user (all workers of xdist, and runs that
know nothing of each other) looks for slots in one folder, where each slot is a file and
holding it is a lock on that file. The kernel lets go of a lock when its process ends,
however it ends, so nothing is to be cleaned up after a crash.

Whoever waits for slots has its turn, which is a lock as well, and keeps what it has
found so far: those who want few do not pass by one who wants many. A process has all
its slots before it looks for GPUs, and gives all back together, so that no two wait for
each other.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from distdoctor.errors import LaunchRefused, SlotsTaken

PATIENCE_S = 1800.0
"""Longer than tests take. Only holders that stand still are waited for in vain, such as
a debugger that somebody left open."""

_POLL_S = 0.005
_LOOK_EVERY_S = 1.0  # at who holds what
_TURN = "turn"
_PREFIX = "slot-"
_PREFIX_GPU = "gpu-"
_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each, by NVIDIA's driver
_LONGEST_NOTE = 64
_SLOTS = pytest.StashKey["Slots"]()


class Slots:
    """Limits how many ranks run at once, in all processes of a user together.

    Runs that were told different totals share their slots as well: each stays within
    its own total.

    Args:
        total: How many slots there are, 1 or more.
        folder: Where their files lie; by default the same for all runs of the user.

    Raises:
        LaunchRefused: total is below 1, or the folder is not to be had.
    """

    def __init__(self, total: int, folder: Path | None = None) -> None:
        if total < 1:
            raise LaunchRefused(f"{total} slots: give the number of ranks, 1 or more")
        self.total = total
        self._files = _LockedFiles(folder or shared_folder(), _PREFIX)
        self._names = [str(number) for number in range(total)]

    @property
    def held(self) -> int:
        """How many slots this process has."""
        return len(self._files.held)

    def acquire(self, n: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until so many slots are free, and take them.

        Whoever wants more than all takes all: it runs alone. What was held before is
        kept if it is enough, and else given back first, as holding some while waiting
        for others is what circles are made of.

        Args:
            n: How many ranks are to run.
            patience_s: For how long nobody may give back or take a slot.

        Raises:
            SlotsTaken: Nobody did for that long.
        """
        wanted = max(1, min(n, self.total))
        if self.held < wanted:
            self.release()
            self._files.take(self._names, wanted, patience_s)

    def release(self) -> None:
        """Release all slots."""
        self._files.release()

    @contextmanager
    def hold(self, n: int, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Context manager that acquires slots and releases them; see `acquire`."""
        self.acquire(n, patience_s)
        try:
            yield
        finally:
            self.release()


class Gpus:
    """GPUs of the machine, each leased to one process at a time.

    Args:
        names: As `CUDA_VISIBLE_DEVICES` names them; by default those that this process
            may use.
        folder: Where their files lie; by default the same for all runs of the user.

    Raises:
        LaunchRefused: The folder is not to be had.
    """

    def __init__(
        self, names: Sequence[str] | None = None, folder: Path | None = None
    ) -> None:
        self.names = list(visible_gpus() if names is None else names)
        self._files = _LockedFiles(folder or shared_folder(), _PREFIX_GPU)

    def lease(self, n: int, patience_s: float = PATIENCE_S) -> list[int]:
        """Wait for so many GPUs that nobody else has; those held before go first.

        Returns:
            Their indices as torch counts in this process, ascending.

        Raises:
            LaunchRefused: There are not so many.
            SlotsTaken: For `patience_s` nobody gave back or took one.
        """
        if n > len(self.names):
            raise LaunchRefused(
                f"{n} GPUs are asked for and {len(self.names)} are here: each rank "
                "needs one of its own"
            )
        self.release()
        self._files.take(self.names, n, patience_s)
        return sorted(self.names.index(name) for name in self._files.held)

    def release(self) -> None:
        """Release all GPUs."""
        self._files.release()


def slots_of(config: pytest.Config, largest: int) -> Slots:
    """The slots of a pytest process; all who start ranks in it share them.

    Args:
        config: Its configuration, with the number that `--distdoctor-slots` told, or 0.
        largest: The most ranks that anything of this session asks for, as far as is
            known; it decides where the option does not.
    """
    if _SLOTS not in config.stash:
        requested = int(config.getoption("distdoctor_slots", 0) or 0)
        config.stash[_SLOTS] = Slots(requested or default_total(largest))
    return config.stash[_SLOTS]


def default_total(largest: int) -> int:
    """The number of slots if the user gives none.

    Args:
        largest: The most ranks that a test of this session asks for.
    """
    return max(len(os.sched_getaffinity(0)), largest, 1)


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs this process may use, as `CUDA_VISIBLE_DEVICES` names them.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": the list ends at
    the first entry that names no device, such as -1.
    """
    count = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not count:
        return [str(number) for number in range(count)]
    names: list[str] = []
    for name in value.split(","):
        name = name.strip()
        if not name or name.startswith("-") or name in names:
            break
        if name.isdecimal() and int(name) >= count:
            break
        names.append(name)
    return names


def shared_folder() -> Path:
    """The folder of the user's slots, made if need be; nobody else may write there.

    Raises:
        LaunchRefused: It cannot be made, or is somebody else's.
    """
    folder = Path(tempfile.gettempdir()) / f"distdoctor-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LaunchRefused(
            f"no folder for slots: {error.filename}: {error.strerror}; let TMPDIR name "
            "a writable one"
        ) from error
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022
    if found.st_uid != os.getuid() or not private:
        raise LaunchRefused(
            f"{folder} is not a folder that only you may write to: remove it, or let "
            "TMPDIR name another"
        )
    return folder


class _LockedFiles:
    """Lock files of one kind in a folder, some of them locked by this object.

    Files stay open, as opening costs more than locking. A lock of flock(2) belongs to
    the open file, and is let go with its last descriptor: children that are forked
    close theirs, so that they do not keep it.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._open: dict[str, int] = {}
        self._locked: set[str] = set()
        self.held: list[str] = []
        _ALL.add(self)

    def __del__(self) -> None:
        self.close()

    def take(self, names: Sequence[str], n: int, patience_s: float) -> None:
        """Lock so many of the files; on an error, none."""
        seen, calm_since, look = "", time.monotonic(), 0.0
        turn = self._prefix + _TURN
        try:
            while not self._try(turn) or not self._collected(names, n):
                now = time.monotonic()
                if now > look:
                    look = now + _LOOK_EVERY_S
                    notes = self._notes(names)
                    if notes != seen:
                        seen, calm_since = notes, now
                if now > calm_since + patience_s:
                    raise SlotsTaken(
                        f"{n} of {len(names)} {self._prefix.rstrip('-')}s were waited "
                        f"for, and in {patience_s:.0f} s nobody gave one back; held by "
                        f"processes {self._holders(names)}: end them, or run the "
                        "tests again when they are done"
                    )
                time.sleep(_POLL_S)
        except BaseException:
            self.release()
            raise
        finally:
            self._unlock(turn)

    def release(self) -> None:
        """Release all locks."""
        for name in self.held:
            self._unlock(self._prefix + name)
        self.held = []

    def close(self) -> None:
        """Close all files, which releases all locks."""
        while self._open:
            with suppress(OSError):
                os.close(self._open.popitem()[1])
        self._locked, self.held = set(), []

    def _collected(self, names: Sequence[str], n: int) -> bool:
        """Take what is free, up to n, and tell whether that is enough."""
        for name in names:
            if len(self.held) >= n:
                break
            if name not in self.held and self._try(self._prefix + name):
                self.held.append(name)
        return len(self.held) >= n

    def _try(self, file: str) -> bool:
        if file in self._locked:
            return True
        if file not in self._open:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._open[file] = os.open(self._path(file), flags, 0o600)
        try:
            fcntl.flock(self._open[file], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._locked.add(file)
        # Also keeps the file young, for what cleans the folder of temporary files.
        note = f"{os.getpid()} {time.monotonic_ns()}".ljust(_LONGEST_NOTE)
        os.pwrite(self._open[file], note.encode(), 0)
        return True

    def _path(self, file: str) -> Path:
        return self._folder / file.replace("/", "_")  # MIG-GPU-…/1/0

    def _unlock(self, file: str) -> None:
        if file in self._locked:
            self._locked.remove(file)
            fcntl.flock(self._open[file], fcntl.LOCK_UN)

    def _notes(self, names: Sequence[str]) -> str:
        """Who took what and when; it changes whenever something is taken."""
        notes = [self._prefix + _TURN, *(self._prefix + name for name in names)]
        return "\n".join(f"{file} {self._note(file)}" for file in notes)

    def _note(self, file: str) -> str:
        with suppress(OSError), self._path(file).open("rb") as stream:
            return stream.read(_LONGEST_NOTE).decode(errors="replace")
        return ""

    def _holders(self, names: Sequence[str]) -> str:
        files = {self._prefix + name for name in (_TURN, *names)} - self._locked
        notes = [self._note(file).partition(" ")[0] for file in files]
        return ", ".join(sorted({note for note in notes if note})) or "unknown"


_ALL: weakref.WeakSet[_LockedFiles] = weakref.WeakSet()


def _close_all() -> None:
    for files in list(_ALL):
        files.close()


os.register_at_fork(after_in_child=_close_all)
