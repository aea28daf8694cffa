"""What reads one kind of files that a job left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving


class Reader(NamedTuple):
    """Reads all files of one kind.

    Attributes:
        kind: What it reads, in words, such as "flight recorder dump".
        recognises: Whether a file is of this kind, by its name and its first bytes.
        read: Reads all such files together into the evidence. It never raises for what
            is in a file: what cannot be read is listed in `Evidence.unreadable`.
    """

    kind: str
    recognises: Callable[[str, bytes], bool]
    read: Callable[[Sequence[Leaving], Evidence], None]
