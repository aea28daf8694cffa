"""Several texts, or the ranks of a group, as one string of a journal."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

MOST_LINES = 10**9
"""Of a file of source; a text that names a later one names none."""

_MOST_MEMBERS = 1 << 17
"""As `model.events.MOST_RANKS`: no rank of a group has a larger number."""

_FEW_MEMBERS = 1024

_MEMBERS = re.compile(r"(?:\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*)?", re.ASCII)
OFTEN = 1000
"""So often, at most, one process sees a group of the same name and ranks."""


def group_text(
    name: str, description: str, generation: int, ranks: tuple[int, ...]
) -> str:
    """A group as one string: what torch calls it, which ranks are in it, in order.

    Args:
        name: torch's name; equal on all members.
        description: torch's description; may be empty.
        generation: How often this process has seen such a group before, and `OFTEN`
            for each process that played its rank before it.
        ranks: Global ranks by group rank.

    Returns:
        Four lines, of which `members_of` reads the last.
    """
    return joined(name, description, str(generation), _as_text(ranks))


def joined(*parts: str) -> str:
    """Texts as one, for `parted`: each on a line, whatever characters are in it.

    Args:
        *parts: The texts; they may hold line breaks and backslashes.

    Returns:
        One text with as many lines as there are parts.
    """
    return "\n".join(_SPECIAL.sub(_escaped, part) for part in parts)


def parted(text: str) -> list[str]:
    """The texts that `joined` made one of.

    Args:
        text: What `joined` returned.

    Returns:
        The texts in their order; one empty text for an empty one.
    """
    return [_ESCAPE.sub(_unescaped, part) for part in text.split("\n")]


_SPECIAL = re.compile(r"[\\\n\ud800-\udfff]")
"""What would end a line, and what UTF-8 cannot tell: names of files may hold it."""

_ESCAPE = re.compile(r"\\(?:(n|\\)|u(d[89a-f][0-9a-f]{2}))")


def _escaped(match: re.Match[str]) -> str:
    return {"\n": r"\n", "\\": r"\\"}.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _unescaped(match: re.Match[str]) -> str:
    if match[2]:
        return chr(int(match[2], 16))
    return "\n" if match[1] == "n" else "\\"


def _as_text(ranks: tuple[int, ...]) -> str:
    """Ranks in their order, runs of them as `first-last`: 16,384 must fit a string."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def members_of(group: str) -> tuple[int, ...]:
    """Global ranks by group rank, from a group's text.

    >>> members_of(group_text("0", "", 0, (0, 1, 2, 7)))
    (0, 1, 2, 7)

    Args:
        group: What `group_text` returned.

    Returns:
        Global ranks, the position in the tuple being the rank in the group; empty if
        the text names none.

    Raises:
        ValueError: The text is damaged: no group has such members.
    """
    text = "".join(group.split("\n")[3:4])
    few = _size(text) <= _FEW_MEMBERS
    return _few_members(text) if few else _many_members(text)


def _members(text: str) -> tuple[int, ...]:
    return tuple(rank for first, end in _runs(text) for rank in range(first, end))


_few_members = lru_cache(maxsize=4096)(_members)
_many_members = lru_cache(maxsize=16)(_members)  # of up to 5 MB each


def number_of_members(group: str) -> int:
    """How many members a group has; this takes no memory for them.

    Args:
        group: What `group_text` returned.

    Returns:
        Their number.

    Raises:
        ValueError: As `members_of`.
    """
    return _size("".join(group.split("\n")[3:4]))


@lru_cache(maxsize=4096)
def _size(text: str) -> int:
    return sum(end - first for first, end in _runs(text))


def _runs(text: str) -> list[tuple[int, int]]:
    """Ranks that follow each other: the first, and that behind the last.

    Raises:
        ValueError: There are no such ranks, or one is there twice.
    """
    if not _MEMBERS.fullmatch(text):
        raise ValueError("the ranks of a group are none")
    runs = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        end = int(last or first) + 1
        if not int(first) < end <= _MOST_MEMBERS:
            raise ValueError(f"no group has the ranks {run}")
        runs.append((int(first), end))
    if any(one[1] > other[0] for one, other in pairwise(sorted(runs))):
        raise ValueError("a rank is twice in a group")
    return runs
