"""Records of our own among what a job left: whole, broken off, or half copied."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import distdoctor
from distdoctor.errors import JournalUnreadable, RecordUnreadable
from distdoctor.journal.assembly import assemble, read_earlier
from distdoctor.journal.folder import (
    MANIFEST,
    Manifest,
    read_exits,
    read_manifest,
)
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.regular_files import opened
from distdoctor.model.run import Run
from distdoctor.postmortem.own_nccl_logs import with_nccl_logs

_JOURNAL = re.compile(r"(?:rank-\d+|unranked)\.\d+\.journal")
_PART = re.compile(
    r".*\.(?:journal|notes|jsonl)|run\.json|stacks\.json|sources\.json"
    r"|comparison\.json|running\.lock|mask\.key|nccl|boards|stacks|ports|values|again|kept|loaders\..*"
)
_REST_OF_A_RECORD = {"second", "interrupted", "resumed", "again", "kept", "values"}
_ANOTHER_LOOK = re.compile(r"with-\d+")
_MOST_FOLDERS = 100_000

RECORD = b"distdoctor.record/"
"""What the manifest of a record says near its beginning."""

BROKEN_OFF = (
    "its record breaks off: distdoctor was killed, or the folder was copied while the "
    "job ran"
)


@dataclass(frozen=True, slots=True)
class OwnRecord:
    """A record folder, read.

    Attributes:
        folder: Where it lies.
        run: What was recorded.
        manifest: How the run was started and how it ended, as far as that is known.
        earlier: What ranks did that were started before these.
    """

    folder: Path
    run: Run
    manifest: Manifest
    earlier: Sequence[Run]


def record_folders(paths: Sequence[str]) -> list[Path]:
    """The record folders at these paths and below them.

    Args:
        paths: Files and folders.

    Returns:
        Each folder once, in the order of the paths. Where a job was started again with
        more ranks to settle a tie, it is the folder of that run.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 - a name may hold anything
            found |= dict.fromkeys(_below(Path(path)))
        elif _JOURNAL.fullmatch(Path(path).name) or Path(path).name == MANIFEST:
            folder = Path(path).parent
            found |= {folder: None} if _holds_one(folder) else {}
    return list(found)


def is_part_of_one(path: str, folders: Sequence[Path]) -> bool:
    """Whether a file is a part of a record, and not only lies in its folder.

    Args:
        path: The file.
        folders: The record folders.
    """
    for folder in folders:
        for one in (folder, folder.parent):
            inside = Path(os.path.relpath(path, one)).parts
            if inside[0] != os.pardir and _holds_one(one):
                return any(_PART.fullmatch(name) for name in inside)
    return False


def is_whole(manifest: Manifest) -> bool:
    """Whether it tells how the run ended; else distdoctor was killed, or runs still."""
    return manifest.exit_code is not None or bool(manifest.stopped)


def read_record(folder: Path) -> OwnRecord:
    """Read a record folder, whatever is left of it.

    Args:
        folder: It has a manifest or a journal.

    Returns:
        What it tells. Of a run whose end was not written down, no rank counts as dead
        that may only have been ended with distdoctor.

    Raises:
        RecordUnreadable: It holds no run of a release that can be read.
        JournalUnreadable: None of its journals can be read.
    """
    manifest = _manifest(folder)
    whole = is_whole(manifest)
    if not whole:
        manifest.alive = _without_end(folder)
    run = assemble(folder, manifest)
    run = with_nccl_logs(_without_cut_off(run, folder), folder, manifest)
    earlier: Sequence[Run] = ()
    if whole:
        earlier = read_earlier(folder)
    else:
        why = dict.fromkeys(run.seen, BROKEN_OFF)
        run = replace(run, partial={**why, **run.partial})
    return OwnRecord(folder, run, manifest, earlier)


def _without_cut_off(run: Run, folder: Path) -> Run:
    """The run without ranks of whose journal the end is missing.

    What they did not do, as far as one can see, they may have done behind that.
    """
    cut = {}
    for path in folder.glob("rank-*.journal"):
        with suppress(JournalUnreadable, OSError):
            journal = JournalReader(path)
            if journal.truncated:
                cut[journal.header().rank] = "its journal was cut off"
    cut = {rank: why for rank, why in cut.items() if rank in run.life}
    if not cut:
        return run
    kept = ~np.isin(run.calls["rank"], list(cut))
    return replace(
        run,
        calls=run.calls[kept],
        life={rank: one for rank, one in run.life.items() if rank not in cut},
        unseen={**run.unseen, **cut},
        partial={rank: why for rank, why in run.partial.items() if rank not in cut},
        stacks={rank: one for rank, one in run.stacks.items() if rank not in cut},
    )


def _below(top: Path) -> Iterator[Path]:
    for looked, (place, folders, files) in enumerate(os.walk(top)):
        if looked > _MOST_FOLDERS:
            return
        if (MANIFEST in files and _is_manifest(Path(place))) or _has_journal(files):
            more = [name for name in folders if _ANOTHER_LOOK.fullmatch(name)]
            again = [Path(place) / name for name in more]
            yield next(filter(_holds_one, sorted(again)), Path(place))
            folders[:] = [
                name
                for name in folders
                if not _PART.fullmatch(name)
                and name not in _REST_OF_A_RECORD
                and name not in more
            ]
        folders.sort()


def _holds_one(folder: Path) -> bool:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is asked for
    except OSError:
        return False
    return (MANIFEST in names and _is_manifest(folder)) or _has_journal(names)


def _has_journal(names: Sequence[str]) -> bool:
    return any(_JOURNAL.fullmatch(name) for name in names)


def _is_manifest(folder: Path) -> bool:
    """Whether the `run.json` of a folder is ours; others write such files, too."""
    try:
        with opened(folder / MANIFEST) as file:
            return RECORD in file.read(4096)
    except OSError:
        return False


def _manifest(folder: Path) -> Manifest:
    try:
        return read_manifest(folder)
    except RecordUnreadable as error:
        if "was written in" in str(error):
            raise  # by another release
        return Manifest(
            distdoctor=distdoctor.__version__,
            launch=[],
            script=folder.name,
            directory=str(folder),
            remarks=[
                f"{MANIFEST} is missing or damaged, and with it how the job ended"
            ],
        )


def _without_end(folder: Path) -> list[int]:
    """Processes of ranks that nobody has seen end."""
    exits = read_exits(folder)
    found = []
    for path in folder.glob("*.journal"):
        try:
            header = JournalReader(path).header()
        except (JournalUnreadable, OSError):
            continue
        if not header.ended and header.pid not in exits:
            found.append(header.pid)
    return found
