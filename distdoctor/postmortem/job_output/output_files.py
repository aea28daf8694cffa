"""Reads what a job printed, wherever it was kept."""

from __future__ import annotations

import io
import lzma
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.job_output.hearing import Heard, Hearing
from distdoctor.postmortem.job_output.line_meanings import FRAGMENTS
from distdoctor.postmortem.job_output.lines import lines
from distdoctor.postmortem.job_output.prefixes import whose
from distdoctor.postmortem.job_output.telling import tell
from distdoctor.postmortem.job_output.torchrun_summaries import (
    error_in_file,
    is_error_file,
)
from distdoctor.postmortem.leavings import HEAD_BYTES, Leaving
from distdoctor.postmortem.readers import Reader

KIND = "output of the job"

_MOST_ERROR_BYTES = 4 << 20
_END_BYTES = 16 << 20
_MOST_NAMED = 100_000

_NAMES = re.compile(
    r"(?:.*[._-])?(?:log|out|err|stdout|stderr|output|dmesg|console|txt|messages|"
    r"o\d+|e\d+)(?:\.\d+)?$|slurm-.*|nohup.*",
    re.IGNORECASE,
)
"""Names that output is given; what has another one has to say something at once."""

_CERTAIN = re.compile(r".*\.(?:log|out|err)$|slurm-.*|nohup.*", re.IGNORECASE)
"""Names of what is output, if nothing in it is read here, too."""

_NO_OUTPUT = re.compile(
    r".*\.(?:py|pyc|md|rst|toml|ya?ml|cfg|ini|csv|tsv|xml|html?|sh|bash|c|cc|cpp|h|"
    r"ipynb|jsonl?|lock|svg|js|css)$",
    re.IGNORECASE,
)
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_DAMAGED = (OSError, EOFError, lzma.LZMAError, zlib.error)


def recognises(name: str, head: bytes) -> bool:
    """Whether a file may be a job's output, or the error that a rank left.

    Args:
        name: Its name.
        head: Its first bytes.
    """
    if is_error_file(name, head):
        return True
    if not head or _CONTROL.search(head[:4096]) or _NO_OUTPUT.match(name):
        return False
    return _NAMES.match(name) is not None or may_say(head)


def may_say(block: bytes) -> bool:
    """Whether a block of output has anything in it that is read here.

    Args:
        block: Bytes.
    """
    return any(fragment in block for fragment in FRAGMENTS)


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read all output of a job together.

    Args:
        leavings: Its files.
        evidence: What is known of the job.
    """
    hearing = Hearing()
    last = _last_attempts(leavings)
    known = {source.path for source in evidence.sources}
    for leaving in leavings:
        owner = whose(leaving.path)
        before, known_ranks = len(hearing.heard), set(hearing.ranks)
        folder = _folder(leaving.path)
        if owner.attempt >= 0 and owner.attempt < last[folder]:
            evidence.left_out.append((leaving.path, "the ranks were started anew"))
            continue
        try:
            stated = _read_one(leaving, hearing)
        except _DAMAGED as error:
            evidence.unreadable.append((leaving.path, str(error) or "damaged"))
            continue
        if stated or _CERTAIN.match(leaving.name):
            remark = "" if stated else "says nothing of a failure"
            ranks = {one.rank for one in hearing.heard[before:]} | {owner.rank}
            ranks |= hearing.ranks - known_ranks
            reported = tuple(sorted(rank for rank in ranks if 0 <= rank < _MOST_NAMED))
            source = SourceRead(leaving.path, KIND, LOG, reported, remark)
            evidence.sources.append(source)
        elif leaving.path not in known:
            evidence.left_out.append((leaving.path, "it says nothing of a failure"))
    if hearing.heard:
        tell(hearing, evidence)
        _name_the_silent(evidence, last)


def _last_attempts(leavings: Sequence[Leaving]) -> dict[str, int]:
    """By folder of torchrun's logs, the number of the last start of its ranks."""
    last: dict[str, int] = {}
    for leaving in leavings:
        folder = _folder(leaving.path)
        last[folder] = max(last.get(folder, -1), whose(leaving.path).attempt)
    return last


def _name_the_silent(evidence: Evidence, last: dict[str, int]) -> None:
    """Ranks whose files are there and empty: they may have been killed."""
    for path, _ in evidence.left_out:
        owner = whose(path)
        if owner.attempt >= 0 and owner.attempt < last.get(_folder(path), 0):
            continue
        rank = owner.rank if owner.rank >= 0 else owner.local
        if rank >= 0 and rank not in evidence.seen and rank < _MOST_NAMED:
            evidence.world_size = max(evidence.world_size, rank + 1)
            why = "its output is empty: it may have been killed"
            evidence.unseen.setdefault(rank, why)


def _folder(path: str) -> str:
    """The folder that torchrun wrote the logs of a job to."""
    return path.partition("attempt_")[0]


def _read_one(leaving: Leaving, hearing: Hearing) -> bool:
    owner = whose(leaving.path)
    head = leaving.head(HEAD_BYTES)
    if is_error_file(Path(leaving.path).name, head):
        with leaving.open() as file:
            raised = error_in_file(file.read(_MOST_ERROR_BYTES + 1))
        if raised is None:
            return False
        hearing.add(Heard(raised, owner.rank, owner.local, ends=True))
        return True
    first = next(lines(io.BytesIO(head), lambda _: True), None) or []
    with leaving.open() as file:
        if not _CERTAIN.match(leaving.name) and not may_say(head):
            if not _may_say_at_its_end(file, leaving.size):
                return False  # a text of somebody, as large as it likes
            file.seek(0)
        return hearing.listen(file, owner, first, may_say)


def _may_say_at_its_end(file: IO[bytes], size: int) -> bool:
    """Whether the end of a file says anything; of a packed one, what is unpacked."""
    if isinstance(file, io.BufferedReader) and size > _END_BYTES:
        file.seek(size - _END_BYTES)
    return may_say(file.read(_END_BYTES))


READER = Reader(KIND, recognises, read)
