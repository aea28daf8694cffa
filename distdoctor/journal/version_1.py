"""Reads what journals of version 1 tell of a rank's life, as of the present version.

There it was an object with a "what", and fields of its own beside it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from distdoctor.journal.event_text import FORMER_WORDS, place_in


def as_present(note: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Kind and fields of an event, and its line if it stood among the fields.

    Returns:
        A kind of "" if version 1 had none of that name.

    Raises:
        KeyError: A field is missing.
        ValueError: A line in it is none.
    """
    fields = dict(note)
    what, site = fields.pop("what"), ""
    if what in {"start", "started"}:
        fields["joined"] = what == "started"
    elif what == "shortened" and fields["length"] < 0:
        fields["length"] = None
    elif what == "fail":
        site = str(fields.pop("site"))
        place = place_in(str(fields.pop("caught", "")))
        fields["caught"] = place and asdict(place)
    return FORMER_WORDS.get(what, ""), fields, site
