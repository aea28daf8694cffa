"""The folder that a run is recorded in: made for it alone, among those that stay."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.journal.private_files import make_private_folder, sharing_problem
from distdoctor.journal.record_lock import RecordLock

DAYS_VARIABLE = "DISTDOCTOR_RECORDS_DAYS"
"""Environment variable: for how many days records stay; 0: for ever."""

GIB_VARIABLE = "DISTDOCTOR_RECORDS_GIB"
"""Environment variable: how many GiB all records may take; 0: any number."""

DAYS, GIB = 30.0, 4.0
"""What holds where nothing is said."""


def records() -> Path:
    """Where records of runs lie that nobody gave a folder for."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or _home() / ".cache") / "distdoctor" / "runs"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name, as containers have them
        return Path("/")


@contextmanager
def record_folder(wanted: Path | None, option: str, kind: str = "") -> Iterator[Path]:
    """Make the folder for a record; if nothing was recorded, it goes again.

    Args:
        wanted: Where the user wants it; None: among the other records; see `tidy`.
        option: By which the user names it.
        kind: Part of its name among the others.

    Yields:
        The folder, empty, and locked until the end.

    Raises:
        LaunchRefused: It cannot be made, holds something already, or others may write
            into it.
    """
    if wanted is None:
        _limits()
    try:
        folder = _as_wanted(wanted, option) if wanted else _among_others(kind)
        lock = RecordLock(folder)
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.strerror else error
        raise LaunchRefused(
            f"no folder for the record: {about}; give a writable one with {option}"
        ) from error
    try:
        yield folder
    except (LaunchRefused, KeyboardInterrupt) as error:
        is_empty = not any(folder.glob("*.journal"))
        if is_empty or isinstance(error, LaunchRefused):
            with suppress(OSError):
                shutil.rmtree(folder)
        raise
    finally:
        lock.release()


def require_room(
    folder: Path, ranks: int, wanted: Path | None, *, in_turn: bool = False
) -> None:
    """Raise unless a record of so many ranks fits; old ones may have to go for it.

    Args:
        folder: The record folder.
        ranks: How many will write.
        wanted: Where the user wants it; None: among the other records.
        in_turn: One rank writes after the other.

    Raises:
        LaunchRefused: It does not fit.
    """
    # Here, so that what needs no job does not wait for what starts one.
    from distdoctor.launch.job import require_space

    try:
        require_space(folder, ranks, in_turn=in_turn)
    except LaunchRefused:  # unless old records are in the way
        if wanted is not None:
            raise
        tidy(beside=folder)
        require_space(folder, ranks, in_turn=in_turn)


def limit(variable: str, otherwise: float) -> float:
    """A limit on records.

    Args:
        variable: Environment variable that tells it.
        otherwise: What holds if it is not set.

    Raises:
        LaunchRefused: It is no number, or below 0.
    """
    text = os.environ.get(variable, "")
    with suppress(ValueError):
        value = float(text) if text else otherwise
        if 0 <= value < float("inf"):
            return value
    raise LaunchRefused(f"{variable}={text}: give a number, such as {otherwise:.0f}")


def _among_others(kind: str) -> Path:
    runs = records()
    try:
        runs.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LaunchRefused(
            f"{runs} cannot be made ({error.strerror}): set XDG_CACHE_HOME to a "
            "folder, or give one for the record (--record; of `distdoctor record`, "
            "--to)"
        ) from error
    if runs.stat().st_uid == os.geteuid():
        runs.chmod(0o700)  # others might write there under a lax umask
    if problem := sharing_problem(runs):
        raise LaunchRefused(_refusal(runs, problem, "--record"))
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S-")
    folder = Path(tempfile.mkdtemp(prefix=stamp + kind, dir=runs.resolve()))
    return make_private_folder(folder)


def _as_wanted(wanted: Path, option: str) -> Path:
    # Ranks do not follow a link that takes its place later.
    folder = Path(os.path.realpath(wanted))
    if folder.exists():
        if problem := sharing_problem(folder):
            raise LaunchRefused(_refusal(wanted, problem, option))
        if any(folder.iterdir()):
            raise LaunchRefused(f"{wanted} is not empty; give {option} a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return make_private_folder(folder, below=0)


def _refusal(folder: Path, problem: str, option: str) -> str:
    return (
        f"{folder} {problem}: a record holds your source and what the job prints; give "
        f"{option} a new folder"
    )


def tidy(beside: Path) -> None:
    """Remove records that are too old or too many, and trim those broken off.

    Takes 0.1 s where there are hundreds, and longer where some have to go.

    Args:
        beside: The folder of a new one, which does not count.

    Raises:
        LaunchRefused: A limit is no number.
        OSError: There is no folder for records.
    """
    # Here, so that --help does not wait for msgspec.
    from distdoctor.journal.kept_records import (
        outdated,
        records_in,
        remove,
        trim_if_broken_off,
    )

    days, gib = _limits()
    found = [one for one in records_in(records().resolve()) if one.folder != beside]
    for one in outdated(found, datetime.now(UTC), days, gib * 2**30):
        remove(one)
    for one in found:
        if one.broken_off and not one.lives:
            trim_if_broken_off(one.folder)


def _limits() -> tuple[float, float]:
    return limit(DAYS_VARIABLE, DAYS), limit(GIB_VARIABLE, GIB)
