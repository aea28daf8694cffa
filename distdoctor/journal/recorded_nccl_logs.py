"""Finds the debug logs that NCCL wrote in a recorded job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.folder import Manifest
from distdoctor.journal.layout import NCCL_FOLDER, NCCL_LOGS_FILE
from distdoctor.journal.reader import JournalReader

_MOST_LOGS = 100_000
_CLOCKS_DIFFER_S = 2.0  # times of files are coarse, and may be a server's


def nccl_logs(folder: Path, manifest: Manifest) -> list[Path]:
    """Logs that NCCL wrote in a job: those that were asked for by us, and by the user.

    Args:
        folder: The record folder.
        manifest: How the job was started. A file of the user's that is older than that
            was left by another job.

    Returns:
        Files that are there, each once.
    """
    ours = sorted((folder / NCCL_FOLDER).glob("*.log"))
    theirs = [
        path for path in _of_the_user(folder) if _is_since(path, manifest.started)
    ]
    found = dict.fromkeys(path for path in (*ours, *theirs) if path.is_file())
    return list(islice(found, _MOST_LOGS))


def sizes_of_nccl_logs(folder: Path, manifest: Manifest) -> dict[str, int]:
    """How many bytes each log has by now.

    Args:
        folder: The record folder.
        manifest: How the job was started.
    """
    sizes = {}
    for path in nccl_logs(folder, manifest):
        with suppress(OSError):
            sizes[str(path)] = path.stat().st_size
    return sizes


def ranks_by_process(folder: Path) -> Mapping[int, int]:
    """By process id, the rank that the process played.

    Args:
        folder: The record folder.
    """
    ranks = {}
    for path in sorted(folder.glob("rank-*.journal")):
        with suppress(JournalUnreadable, OSError):
            header = JournalReader(path).header()
            ranks[header.pid] = header.rank
    return ranks


def _of_the_user(folder: Path) -> list[Path]:
    found = []
    with suppress(OSError), (folder / NCCL_LOGS_FILE).open(errors="replace") as file:
        for line in islice(file, _MOST_LOGS):
            with suppress(ValueError, TypeError, KeyError):  # torn: its writer died
                found.append(Path(json.loads(line)["path"]))
    return found


def _is_since(path: Path, started: str) -> bool:
    try:
        begun = datetime.fromisoformat(started).timestamp()
        return path.stat().st_mtime >= begun - _CLOCKS_DIFFER_S
    except (OSError, ValueError):
        return False
