"""Which files a rank wrote anew, and whether it read them."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Observation):
    """A file was opened for writing, and what was in it was thrown away."""

    path: str = ""
    times: int = 1  # from that line, so far
    locked: bool = False  # the process took a lock on some file before


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack(Observation):
    """A file was read that some rank of this job may have written."""

    path: str = ""
    waited: bool = False  # the process slept or took a lock before, perhaps for it


KINDS = (Written, ReadBack)
