"""Which files a record held when its run was over, so that a lost one is missed.

A file that is not there looks as if there had been nothing to write into it: a record
without `comparison.json` as one of a job that was compared with no other. So the
manifest lists the files, and who reads the record compares.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.folder import MANIFEST, Manifest, write
from distdoctor.journal.layout import COMPARISON_FILE, NCCL_FOLDER
from distdoctor.model.observations.comparison import Traced
from distdoctor.model.run import Run
from distdoctor.model.stop_reasons import Stop

_JOURNAL = ".journal"

_LISTED = (".json", ".jsonl", ".notes", _JOURNAL)

_PLAYER = re.compile(r"rank-(\d{1,6})\.", re.ASCII)

_MOST_TOLD = 10  # files by name

_MISSING = "the file is missing: it was there when the run was over"


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a run that is over, with a list of the record's files.

    Args:
        folder: The record folder; all that is to be in it is.
        manifest: How the run was started and how it ended; its `files` change.

    Raises:
        OSError: It cannot be written.
    """
    manifest.files = _files_of(folder)
    write(folder, MANIFEST, manifest)


def lost_files(folder: Path, manifest: Manifest, run: Run) -> list[tuple[str, str]]:
    """Files that the record held when its run was over, and does not hold now.

    Args:
        folder: The record folder.
        manifest: Tells which they were; while a job runs, and in records of earlier
            releases, it tells of none.
        run: Made of what is left. Of ranks of which nothing is left it says so itself.

    Returns:
        Names of files, and what is wrong with them.
    """
    lost = list(_lost(folder, manifest, run))
    if len(lost) > _MOST_TOLD:
        others = len(lost) - _MOST_TOLD
        lost[_MOST_TOLD:] = [(f"each of {others} other files", "they are missing")]
    return lost


def _lost(folder: Path, manifest: Manifest, run: Run) -> Iterator[tuple[str, str]]:
    held = manifest.files
    there = _files_of(folder) if held else {}
    for name, size in held.items():
        if name not in there:
            if not _is_of_unseen(name, run):
                yield name, _MISSING
        elif there[name] < size:
            yield name, f"the file was cut: it had {size} bytes when the run was over"
    if COMPARISON_FILE not in held and _lacks_comparison(folder, manifest, run):
        yield (
            COMPARISON_FILE,
            "the file is missing: the ranks wrote down what they computed, so that "
            "this run could be compared with another",
        )


def _lacks_comparison(folder: Path, manifest: Manifest, run: Run) -> bool:
    """Whether a run was to be compared, and nothing tells what came of it."""
    return (
        _is_over(manifest)
        and manifest.stopped != Stop.INTERRUPTED
        and run.has(Traced)
        and not os.path.lexists(folder / COMPARISON_FILE)
    )


def _is_over(manifest: Manifest) -> bool:
    return manifest.exit_code is not None or bool(manifest.stopped)


def _is_of_unseen(name: str, run: Run) -> bool:
    """Whether a file is of a rank of which the run itself tells that it is unseen."""
    found = _PLAYER.match(name)
    return found is not None and int(found[1]) in run.unseen


def _files_of(folder: Path) -> dict[str, int]:
    """Sizes in bytes of a record's files, by their names in it.

    Journals have none: their headers tell whether they are whole, and they shrink
    when they are trimmed.
    """
    sizes = {}
    for name, entry in _entries(folder):
        with suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                sizes[name] = 0 if name.endswith(_JOURNAL) else status.st_size
    return dict(sorted(sizes.items()))


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What lies in a record folder under the names that stay, unsorted."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(_LISTED) and name[0] != "." and name != MANIFEST:
                yield name, entry
    logs = folder / NCCL_FOLDER
    if logs.is_symlink():
        return
    with suppress(OSError), os.scandir(logs) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                yield f"{NCCL_FOLDER}/{entry.name}", entry
