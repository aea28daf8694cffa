"""Reads notes; see `notes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from distdoctor.journal.notes import MOST_BYTES, notes_of
from distdoctor.model.events import Observation
from distdoctor.model.observations import BY_NAME


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
        return None if kind is None else msgspec.convert({"rank": -1, **fields}, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _decoded(data: bytes) -> Any:
    """What JSON tells, also of names that are no text: msgspec refuses those."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(data)
