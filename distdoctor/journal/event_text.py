"""Events as text: the one form in which a rank tells what is no call.

An event is JSON, a list of its kind's name and an object of its fields. Its rank, and
its place in the user's source, are told by the record that it belongs to. Only the
standard library is used: this runs in the job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from distdoctor.journal.packed_texts import parted

if TYPE_CHECKING:
    from distdoctor.model.events import Life, Observation, Place

_OF_THE_RECORD = ("rank", "place")


def event_text(event: Life | Observation) -> str:
    """The text of an event.

    Raises:
        ValueError: A number in it is not finite.
    """
    values = {
        field.name: getattr(event, field.name)
        for field in fields(event)
        if field.name not in _OF_THE_RECORD
    }
    note = [type(event).__name__, values]
    return json.dumps(note, separators=(",", ":"), allow_nan=False, default=asdict)


def place_in(text: str) -> Place | None:
    """The line of source that a packed text names, as `call_sites` makes it; or None.

    Raises:
        ValueError: It is no such text.
    """
    from distdoctor.model.events import Place

    if not text:
        return None
    file, line, function = parted(text)
    return Place(file, int(line), function)


def kind_of(text: str) -> str:
    """Name of an event's kind, without a look at its fields; "" if it has none."""
    try:
        note: Any = json.loads(text)
        name = FORMER_WORDS[note["what"]] if isinstance(note, dict) else note[0]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""


FORMER_WORDS = {
    "address": "BadAddress",
    "fail": "Failure",
    "leave": "Left",
    "misplaced": "Misplaced",
    "quit": "Quit",
    "reduced": "Reduced",
    "shortened": "Shortened",
    "start": "Started",
    "started": "Started",
    "unreduced": "Unreduced",
    "wrap": "Wrapped",
}
"""Kinds by the words that stood for them in journals of version 1; see `version_1`."""
