"""Reads events that ranks told, from journals and from notes; see `event_text`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar, get_args, get_type_hints

import msgspec

from distdoctor.journal.notes import MOST_BYTES, notes_of
from distdoctor.journal.packed_texts import MOST_LINES
from distdoctor.journal.regular_files import decoded, opened
from distdoctor.journal.version_1 import as_present
from distdoctor.model.events import Life, Observation, Place
from distdoctor.model.observations import BY_NAME

_LIFE: dict[str, type[Life]] = {kind.__name__: kind for kind in get_args(Life)}

_DAMAGED = (KeyError, TypeError, AttributeError, RecursionError)
"""What reading a text of version 1 can end in that is not what was written."""

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Of whole numbers in events: fingerprints and addresses have 64 bits."""

Told = TypeVar("Told")


def read_life(text: str) -> tuple[Life | None, str]:
    """The event of a rank's life that a string of its journal tells.

    Returns:
        The event, None if it is of a later release; and its line, where that is told
        by the text itself and not by the record ("" otherwise).

    Raises:
        ValueError: It tells none.
    """
    data = text.encode()
    if not data.startswith(b"{"):
        return _event(data, _LIFE), ""
    try:
        name, values, site = as_present(decoded(data, dict[str, Any], names=True))
        kind = _LIFE.get(name)
        if kind is None:
            return None, site
        return within_bounds(msgspec.convert(values, kind)), site
    except _DAMAGED as error:
        raise ValueError(str(error)) from error


class NotesReader:
    """The notes of one journal.

    Args:
        journal: The journal's file; its notes lie beside it.
    """

    def __init__(self, journal: Path) -> None:
        self._path = notes_of(journal)
        self._file: IO[bytes] | None = None
        self._left = 0  # bytes that no note was read from yet: none is read twice

    def read(self, begin: int, size: int) -> Observation | None:
        """The observation that a note tells; None if it is of a later release.

        Args:
            begin: Where the note begins, in bytes.
            size: How many bytes it has.

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
        return _event(os.pread(self._file.fileno(), size, begin), BY_NAME)

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()


def _event(data: bytes, kinds: Mapping[str, type[Told]]) -> Told | None:
    try:
        name, text = decoded(data, tuple[str, msgspec.Raw])
        kind = kinds.get(name)
        return None if kind is None else within_bounds(decoded(text, kind))
    except msgspec.ValidationError:
        raise
    except ValueError:  # it may hold the name of a file that is no text
        name, values = decoded(data, tuple[str, dict[str, Any]], names=True)
    kind = kinds.get(name)
    return None if kind is None else within_bounds(msgspec.convert(values, kind))


def within_bounds(event: Told) -> Told:
    """The event itself, if no number in it is larger than any that jobs tell.

    Raises:
        ValueError: One is.
    """
    kind: Any = type(event)
    single, several = _whole_numbers(kind)
    for name in single:
        value = getattr(event, name)
        if value is not None and not _LEAST <= value <= _MOST:
            raise ValueError(f"{name} has more than 64 bits")
    for name in several:
        if (values := getattr(event, name)) and (
            min(values) < _LEAST or max(values) > _MOST
        ):
            raise ValueError(f"{name} have more than 64 bits")
    caught = getattr(event, "caught", None)
    if isinstance(caught, Place) and not 0 <= caught.line <= MOST_LINES:
        raise ValueError(f"no file has a line {caught.line}")
    return event


@cache
def _whole_numbers(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields of a kind of event that are one whole number, and several."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    named = {name: hints[name] for name in names}
    single = (name for name, hint in named.items() if hint in (int, int | None))
    several = (name for name, hint in named.items() if hint == tuple[int, ...])
    return tuple(single), tuple(several)
