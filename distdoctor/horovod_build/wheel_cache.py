"""Where wheels of Horovod are kept: a folder for each kind, one builder at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distdoctor.errors import HorovodUnavailable

CACHE_VARIABLE = "DISTDOCTOR_HOROVOD_CACHE"
"""Environment variable: the folder for wheels, if no option gives one."""


def default_cache() -> Path:
    """The folder for wheels that nobody gave one for."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "distdoctor" / "horovod"


class WheelSlot:
    """The place of one kind of wheel in the cache.

    Args:
        cache: Folder of all kinds.
        name: Of this kind; see `BuildTarget.slot`.

    Raises:
        HorovodUnavailable: The folder cannot be made or written.
    """

    def __init__(self, cache: Path, name: str) -> None:
        self.folder = cache.absolute() / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _no_folder(error) from error
        self.log = self.folder / "build.log"

    def wheel(self) -> Path | None:
        """The wheel that is kept, if there is one; it is whole."""
        wheels = [
            path for path in self.folder.glob("*.whl") if zipfile.is_zipfile(path)
        ]
        return max(wheels, key=lambda path: path.name, default=None)

    @contextmanager
    def alone(self, waiting: Callable[[], None]) -> Iterator[None]:
        """Be the only process that builds this kind; ends with the process at last.

        Args:
            waiting: Called where another process builds, before it is waited for.

        Raises:
            HorovodUnavailable: The folder cannot be written.
        """
        try:
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise _no_folder(error) from error
        with file:
            # Some file systems have no locks. Two builds cost time there, and no more.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                pass
            yield

    def keep(self, wheel: Path) -> Path:
        """Put a wheel here in one step, so that nobody sees half of it.

        Raises:
            HorovodUnavailable: The folder cannot be written.
        """
        kept = self.folder / wheel.name
        part = None
        try:
            number, part = tempfile.mkstemp(prefix=".part-", dir=self.folder)
            os.close(number)
            shutil.copyfile(wheel, part)
            Path(part).chmod(0o644)
            Path(part).replace(kept)
        except OSError as error:
            raise _no_folder(error) from error
        finally:
            if part is not None:
                with suppress(OSError):
                    Path(part).unlink()
        return kept


def _no_folder(error: OSError) -> HorovodUnavailable:
    return HorovodUnavailable(
        f"no folder for the wheel: {error.filename}: {error.strerror}; give a writable "
        f"one with --cache or {CACHE_VARIABLE}"
    )
