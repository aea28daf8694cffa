"""Reads events that ranks told, from journals and from notes; see `event_text`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from distdoctor.journal.notes import MOST_BYTES, notes_of
from distdoctor.journal.version_1 import as_present
from distdoctor.model.events import Life, Observation
from distdoctor.model.observations import BY_NAME

_LIFE: dict[str, type[Life]] = {kind.__name__: kind for kind in get_args(Life)}


_DAMAGED = (KeyError, TypeError, AttributeError, RecursionError)
"""What reading a text of version 1 can end in that is not what was written."""


def read_life(text: str) -> tuple[Life | None, str]:
    """The event of a rank's life that a string of its journal tells.

    Returns:
        The event, None if it is of a later release; and its line, where that is told
        by the text itself and not by the record ("" otherwise).

    Raises:
        ValueError: It tells none.
    """
    site = ""
    try:
        note = _decoded(text.encode())
        if isinstance(note, dict):
            *note, site = as_present(note)
        name, fields = msgspec.convert(note, tuple[str, dict[str, Any]])
        kind = _LIFE.get(name)
        return None if kind is None else msgspec.convert(fields, kind), site
    except (*_DAMAGED, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error


def read_note(journal: Path, begin: int, size: int) -> Observation | None:
    """The observation that a note tells; None if it is of a later release.

    Its rank and place are not in it.

    Args:
        journal: The journal's file; its notes lie beside it.
        begin: Where the note begins, in bytes.
        size: How many bytes it has.

    Returns:
        The observation with rank -1 and without a place, or None.

    Raises:
        OSError: The file is not there.
        ValueError: It does not hold a note at that place.
    """
    with notes_of(journal).open("rb") as file:
        file.seek(begin)
        data = file.read(min(size, MOST_BYTES))
    try:
        name, fields = msgspec.convert(_decoded(data), tuple[str, dict[str, Any]])
        kind = BY_NAME.get(name)
        return None if kind is None else msgspec.convert(fields, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _decoded(data: bytes) -> Any:
    """What JSON tells, also of names that are no text: msgspec refuses those."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)
