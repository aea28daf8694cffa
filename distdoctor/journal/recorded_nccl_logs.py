"""Finds the debug logs that NCCL wrote in a recorded job."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.assembly import journals_by_generation
from distdoctor.journal.folder import Manifest, read_nccl_logs
from distdoctor.journal.layout import NCCL_FOLDER
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.regular_files import is_regular

_MOST_LOGS = 100_000
_CLOCKS_DIFFER_S = 2.0  # times of files are coarse, and may be a server's


def nccl_logs(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Logs that NCCL wrote in a job: those that were asked for by us, and by the user.

    Args:
        folder: The record folder.
        manifest: How the job was started. A file of the user's that is older than that
            was left by another job.

    Returns:
        Files that are there, each once, by a name that stays when the record folder is
        moved or reached by another path: in it, for logs that lie there.
    """
    inside = folder / NCCL_FOLDER
    logs = [] if inside.is_symlink() else sorted(inside.glob("*.log"))
    ours = list(filter(is_regular, logs))
    known = {path.resolve() for path in ours}
    found = {path.relative_to(folder).as_posix(): path for path in ours}
    for path in read_nccl_logs(folder)[:_MOST_LOGS]:
        # Programs that ranks start inherit our variables, and note them as the user's.
        if _is_since(path, manifest.started) and path.resolve() not in known:
            found[str(path)] = path
    return dict(islice(found.items(), _MOST_LOGS))


def sizes_of_nccl_logs(folder: Path, manifest: Manifest) -> dict[str, int]:
    """How many bytes each log has by now.

    Args:
        folder: The record folder.
        manifest: How the job was started.

    Returns:
        Sizes by the names of `nccl_logs`.
    """
    sizes = {}
    for key, path in nccl_logs(folder, manifest).items():
        with suppress(OSError):
            sizes[key] = path.stat().st_size
    return sizes


def ranks_by_process(folder: Path, manifest: Manifest) -> Mapping[int, int]:
    """By process id, the rank that the process played in the last generation of ranks.

    Args:
        folder: The record folder.
        manifest: How the job was started and how it ended.
    """
    ranks = {}
    for path in journals_by_generation(folder, manifest)[-1]:
        with suppress(JournalUnreadable, OSError):
            header = JournalReader(path).header()
            if header.rank >= 0:
                ranks[header.pid] = header.rank
    return ranks


def _is_since(path: Path, started: str) -> bool:
    try:
        begun = datetime.fromisoformat(started).timestamp()
        return path.is_file() and path.stat().st_mtime >= begun - _CLOCKS_DIFFER_S
    except (OSError, ValueError, OverflowError):
        return False
