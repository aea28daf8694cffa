"""Words of drawings: an event of a run each.

Those for calls, and for observations, are told from the table of operations and from
the kinds of observation. All others stand in one table, which is read both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from distdoctor.model import drawing_calls
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    BadAddress,
    Batch,
    Busy,
    Call,
    Dead,
    Ended,
    Event,
    Failure,
    Left,
    Locked,
    Misplaced,
    Observation,
    Place,
    Quit,
    Shortened,
    Started,
    Stranded,
    ThreadEnded,
    Touched,
    Unreduced,
    Wrapped,
)
from distdoctor.model.observations import drawing_syntax
from distdoctor.model.operations import CODE_OF

WORD = re.compile(
    r"(?P<name>[a-z_]+)"
    r"(?:=(?P<value>[^@\s]*?))?"
    r"(?:\((?P<tensors>[^)\s]*)\))?"
    r"(?:/(?P<group>[\w-]+))?"
    r"(?:@(?P<file>[^\s:<]+?):(?P<line>\d+)(?P<callers>(?:<[^\s:<]+:\d+)*))?"
    r"(?P<flags>[&'~+]*)(?P<end>\.\.\.inside|\.\.\.issued|\.\.\.|!!|!|\^)?"
    r"(?:%(?P<thread>\d+))?"
    r"(?:\+(?P<entered>\d+)ms)?"
)
"""A word of any kind, in its parts."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that tells an event of one kind, such as `quit=sys.exit:3@train.py:9`.

    Attributes:
        kind: Of the event.
        value: Fields that the value of the word tells, in order.
        separator: Stands between them.
        marks: By what stands at the end of the word, the fields that it tells.
        implied: Fields that the name of the word tells.
        placed: It always has a place.
    """

    kind: type[Any]
    value: tuple[str, ...] = ()
    separator: str = ":"
    marks: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    implied: Mapping[str, Any] = field(default_factory=dict)
    placed: bool = False

    def read(self, rank: int, value: str, mark: str, place: Place | None) -> Event:
        """The event of a word.

        Raises:
            ValueError: A value is not of its form, or it has to have a place.
        """
        if self.placed and place is None:
            raise ValueError(value)
        parts = value.split(self.separator, max(0, len(self.value) - 1))
        fields = self.kind.__dataclass_fields__
        values = {
            name: drawing_syntax.value_of(fields[name], part)
            for name, part in zip_longest(self.value, parts, fillvalue="")
            if name
        }
        arguments = {**values, **self.implied, **self.marks.get(mark, {})}
        event: Event = self.kind(rank=rank, place=place, **arguments)
        return event

    def write(self, name: str, event: Event, where: str) -> str:
        """The word of a name for an event, without separators at the value's end."""
        parts = (drawing_syntax.text_of(getattr(event, one)) for one in self.value)
        value = self.separator.join(parts).rstrip(self.separator)
        mark = next((m for m, marked in self.marks.items() if _has(event, marked)), "")
        return f"{name}{'=' * bool(self.value)}{value}{where}{mark}"


def _has(event: Event, fields: Mapping[str, Any]) -> bool:
    return all(getattr(event, name) == value for name, value in fields.items())


_FAILURES = {
    "~^": {"fatal": False, "secondary": True},
    "~": {"fatal": False},
    "^": {"secondary": True},
}
_ENDS = {"!!": {"orderly": False, "stopped": True}, "!": {"orderly": False}}

WORDS = {
    "start": Word(Started, ("world_size",), marks={"...": {"joined": False}}),
    "wrap": Word(Wrapped, ("how", "parameters", "ranks")),
    "misplaced": Word(Misplaced, ("device",)),
    "unreduced": Word(Unreduced, ("parameters",)),
    "batches": Word(Batch, ("count",), marks={"...": {"ended": False}}),
    "shortened": Word(Shortened, ("kept", "length")),
    "fail": Word(Failure, ("error",), marks=_FAILURES),
    "leave": Word(Left),
    "quit": Word(Quit, ("how", "status")),
    "exit": Word(Ended, ("status",), marks=_ENDS),
    "over": Word(ThreadEnded, ("thread",)),
    "touched": Word(Touched, ("issued",), implied={"stepped": False}),
    "stepped": Word(Touched, ("issued",), implied={"stepped": True}),
    "dead": Word(Dead, ("seconds",)),
    "stranded": Word(Stranded, ("seconds",), placed=True),
    "locked": Word(Locked, ("seconds",), placed=True),
    "busy": Word(Busy, ("seconds",), placed=True),
}
WORDS |= {
    fault: Word(
        BadAddress,
        ("address", "given"),
        separator=">",
        marks={"...": {"mended": False}},
        implied={"fault": fault},
    )
    for fault in ADDRESS_FAULTS
}
"""By name, all words that are neither of a call nor of an observation."""


def read(rank: int, text: str, ordinals: dict[str, int]) -> Event:
    """The event that a word tells.

    Args:
        rank: Whose it is.
        text: The word.
        ordinals: How many collectives there were before, by group; is counted on.

    Raises:
        KeyError: It has no such field, option or ending.
        ValueError: It is no word, or a value is not of its form.
    """
    match = WORD.fullmatch(text)
    if match is None:
        raise ValueError(text)
    name, value = match["name"], match["value"]
    mark = match["flags"] + (match["end"] or "")
    place = Place(match["file"], int(match["line"])) if match["file"] else None
    if name in WORDS and (value is not None or not WORDS[name].value):
        return WORDS[name].read(rank, value or "", mark, place)
    if value is None and name in CODE_OF:
        return drawing_calls.read(rank, match, place, ordinals)
    if value is None and not mark:
        return drawing_syntax.read(name, match["tensors"] or "", rank, place)
    raise ValueError(text)


def write(event: Event, places: bool) -> str:
    """The word for an event.

    Args:
        event: The event.
        places: Whether its line of source is written; some words always have it.
    """
    where = "" if event.place is None else f"@{event.place}"
    if isinstance(event, Call):
        return drawing_calls.write(event, where if places else "")
    if isinstance(event, Observation):
        return drawing_syntax.write(event) + (where if places else "")
    name, word = next(
        (name, word)
        for name, word in WORDS.items()
        if isinstance(event, word.kind) and _has(event, word.implied)
    )
    return word.write(name, event, where if places or word.placed else "")
