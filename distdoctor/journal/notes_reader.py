"""Reads events that ranks told, from journals and from notes; see `event_text`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, get_args

import msgspec

from distdoctor.journal.note_limits import possible
from distdoctor.journal.notes import MOST_BYTES, notes_of
from distdoctor.journal.regular_files import decoded, opened
from distdoctor.journal.version_1 import as_present
from distdoctor.model.events import MOST_RANKS, Life, Observation
from distdoctor.model.observations import BY_NAME

_LIFE: dict[str, type[Life]] = {kind.__name__: kind for kind in get_args(Life)}

_DAMAGED = (KeyError, TypeError, AttributeError, RecursionError)
"""What reading a text of version 1 can end in that is not what was written."""

Told = TypeVar("Told")


def read_life(text: str, world_size: int = MOST_RANKS) -> tuple[Life | None, str]:
    """The event of a rank's life that a string of its journal tells.

    Returns:
        The event, None if it is of a later release; and its line, where that is told
        by the text itself and not by the record ("" otherwise).

    Raises:
        ValueError: It tells none.
    """
    data = text.encode()
    if not data.startswith(b"{"):
        return _event(data, _LIFE, world_size), ""
    try:
        name, values, site = as_present(decoded(data, dict[str, Any], names=True))
        kind = _LIFE.get(name)
        if kind is None:
            return None, site
        return possible(msgspec.convert(values, kind), world_size), site
    except _DAMAGED as error:
        raise ValueError(str(error)) from error


def read_event(text: str, world_size: int = MOST_RANKS) -> Observation | None:
    """The observation that a text of `event_text` tells; None: of a later release.

    Raises:
        ValueError: It tells none.
    """
    return _event(text.encode(), BY_NAME, world_size)


class NotesReader:
    """The notes of one journal.

    Args:
        journal: The journal's file; its notes lie beside it.
    """

    def __init__(self, journal: Path) -> None:
        self._path = notes_of(journal)
        self._file: IO[bytes] | None = None
        self._left = 0  # bytes that no note was read from yet: none is read twice

    def read(
        self, begin: int, size: int, world_size: int = MOST_RANKS
    ) -> Observation | None:
        """The observation that a note tells; None if it is of a later release.

        Args:
            begin: Where the note begins, in bytes.
            size: How many bytes it has.
            world_size: Of the job.

        Returns:
            The observation with rank -1 and without a place, or None.

        Raises:
            OSError: The file is not there.
            ValueError: It does not hold a note at that place.
        """
        if self._file is None:
            self._file = opened(self._path)
            self._left = min(os.fstat(self._file.fileno()).st_size, MOST_BYTES)
        if size > self._left or begin > MOST_BYTES:
            raise ValueError("there are not so many bytes of notes")
        self._left -= size
        return _event(os.pread(self._file.fileno(), size, begin), BY_NAME, world_size)

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()


def _event(
    data: bytes, kinds: Mapping[str, type[Told]], world_size: int
) -> Told | None:
    try:
        name, text = decoded(data, tuple[str, msgspec.Raw])
        kind = kinds.get(name)
        return None if kind is None else possible(decoded(text, kind), world_size)
    except msgspec.ValidationError:
        raise
    except ValueError:  # it may hold the name of a file that is no text
        name, values = decoded(data, tuple[str, dict[str, Any]], names=True)
    kind = kinds.get(name)
    return None if kind is None else possible(msgspec.convert(values, kind), world_size)
