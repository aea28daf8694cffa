"""Observations as words of a drawing: `read(samples=0-3+7,steps=2)`.

The name is that of the kind in small letters, its parts joined by "_". Fields that
have their default are not written. A truth value is false by default, and its name
alone says that it is true; several numbers or texts are joined by "+", and numbers that
count up by one are written `first-last`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any
from urllib.parse import quote, unquote

from distdoctor.model.events import Observation, Place
from distdoctor.model.observations import KINDS as _KINDS

_NAMES = {
    kind: re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower() for kind in _KINDS
}

KINDS = {name: kind for kind, name in _NAMES.items()}
"""Kinds of observation by the name that they have in drawings."""

_RUN = re.compile(r"(-?\d+)(?:-(\d+))?")
_LONG = 3  # numbers that are worth writing as a run


def read(name: str, options: str, rank: int, place: Place | None) -> Observation:
    """The observation that a word tells.

    Args:
        name: The word's name, a key of `KINDS`.
        options: What stands between its brackets; may be empty.
        rank: The rank whose line the word stands in.
        place: The line of source behind the word, if there is one.

    Returns:
        The observation; fields that are not written have their default.

    Raises:
        KeyError: It has no such field.
        ValueError: A field's value is not of its type.
    """
    kind = KINDS[name]
    known = {field.name: field for field in _own_fields(kind)}
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, equals, text = option.partition("=")
        if bool(equals) is (known[key].type == "bool"):
            raise ValueError(option)
        values[key] = value_of(known[key], text) if equals else True
    return kind(rank=rank, place=place, **values)


def write(observation: Observation) -> str:
    """The word for an observation.

    Args:
        observation: Any kind that `KINDS` has.

    Returns:
        The word as `read` reads it, without the place.
    """
    options = []
    for field in _own_fields(type(observation)):
        value = getattr(observation, field.name)
        if value == field.default:
            continue
        flag = isinstance(value, bool)
        options.append(field.name if flag else f"{field.name}={text_of(value)}")
    bracketed = f"({','.join(options)})" if options else ""
    return _NAMES[type(observation)] + bracketed


def _own_fields(kind: type[Observation]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.name not in {"rank", "place"}]


def value_of(field: Field[Any], text: str) -> Any:
    """The value of an event's field, as `text_of` writes it.

    Args:
        field: Of the event's dataclass; its annotation says how to read.
        text: Such as `0-3+7` for several numbers.

    Returns:
        A number, a text, or a tuple of these.

    Raises:
        ValueError: It is not of the field's type.
    """
    return _READERS[str(field.type)](text)


def text_of(value: Any) -> str:
    """The value of an event's field in a drawing."""
    if isinstance(value, tuple):
        if value and all(isinstance(one, int) for one in value):
            return as_runs(value)
        return "+".join(map(text_of, value))
    if isinstance(value, str):
        return quote(value, safe="/.:")
    if isinstance(value, float):
        return repr(value).replace("e+", "e").removesuffix(".0")
    return "?" if value is None else str(value)


def _runs(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in filter(None, text.split("+")):
        run = _RUN.fullmatch(part)
        if run is None:
            raise ValueError(text)
        first = int(run[1])
        numbers += range(first, int(run[2] or first) + 1)
    return tuple(numbers)


def _place(text: str) -> Place:
    file, _, line = text.rpartition(":")
    return Place(file, int(line))


def _several(read_one: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(map(read_one, text.split("+"))) if text else ()


def _known(read_one: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text in {"", "?"} else read_one(text)


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": unquote,
    "int | None": _known(int),
    "Place | None": _known(_place),
    "tuple[int, ...]": _runs,
    "tuple[float, ...]": _several(float),
    "tuple[str, ...]": _several(unquote),
}
"""By the annotation of a field."""


def as_runs(numbers: tuple[int, ...]) -> str:
    """Numbers, those that count up by one as `first-last`.

    >>> as_runs((0, 1, 2, 3, 7, 7, 8))
    '0-3+7+7+8'

    Args:
        numbers: In any order; the order is kept.

    Returns:
        Numbers and runs joined by "+"; empty if there are none.
    """
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1 and found[-1][0] >= 0:
            found[-1].append(number)
        else:
            found.append([number])
    parts: list[str] = []
    for run in found:
        long = len(run) >= _LONG
        parts += [f"{run[0]}-{run[-1]}"] if long else map(str, run)
    return "+".join(parts)
