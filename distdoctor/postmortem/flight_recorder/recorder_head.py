"""The head of a dump: the groups of a rank, and how far it had come on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from distdoctor.model.events import MOST_RANKS

_DIGITS = re.compile(r"\d{1,9}")


def groups_listed(
    listed: Any, known: dict[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The groups of a rank.

    Args:
        listed: `pg_config` of a dump.
        known: Lists of members that were read before, by their text; more are added.

    Returns:
        By name of a group its global ranks, and what it is said to be for.
    """
    members: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    for key, value in listed.items() if isinstance(listed, dict) else ():
        if not isinstance(key, str | int):
            continue
        name, ranks = str(key), value  # format 1 has the list itself
        if isinstance(value, dict):
            named, ranks = value.get("name"), value.get("ranks")
            name = named if isinstance(named, str) else name
            stated = value.get("desc")
            descriptions[name] = stated if isinstance(stated, str) else ""
        text = str(ranks) if isinstance(ranks, str) else ""
        numbers = known.get(text) or tuple(islice(_ranks(ranks), MOST_RANKS))
        if text:
            known[text] = numbers
        if numbers and max(numbers) < MOST_RANKS:
            members[name] = numbers
    return members, descriptions


def _ranks(value: Any) -> Iterator[int]:
    """Ranks, which are written as a text such as "[0, 1]"."""
    if isinstance(value, str):
        listed: Iterable[Any] = map(int, _DIGITS.findall(value))
    else:
        listed = value if isinstance(value, list | tuple) else ()
    for one in listed:
        if isinstance(one, int) and 0 <= one < MOST_RANKS:
            yield one


def enqueued(status: Any) -> Iterator[tuple[str, int]]:
    """How far a rank had come.

    Args:
        status: `pg_status` of a dump.

    Yields:
        The rank's own number of a group, and its last collective enqueued there.
    """
    for key, value in status.items() if isinstance(status, dict) else ():
        reported = isinstance(value, dict) and "last_enqueued_collective" in value
        if reported and isinstance(key, str | int):
            yield str(key), _signed(value["last_enqueued_collective"])


def _signed(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def has_called(status: Any) -> bool:
    """Whether some call was made, by what the head says.

    Args:
        status: `pg_status` of a dump.
    """
    return any(number > 0 for _, number in enqueued(status))
