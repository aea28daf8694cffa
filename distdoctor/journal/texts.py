"""What the texts in journals tell: lines of source, tensors, groups."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from distdoctor.journal.packed_texts import (
    MOST_LINES,
    OFTEN,
    members_of,
    number_of_members,
    parted,
)
from distdoctor.journal.regular_files import decoded
from distdoctor.model.events import SETUP, STORE, WORLD, Place, Tensor
from distdoctor.model.run import Group, Spec

_OF_A_LINE = 3
"""Parts of the text of a line of source: file, line, function."""

_MOST_MEMBERS = 1 << 22
"""Of all groups of a run together; as many as 64 groups of 65,536 ranks have."""

_MOST_ELEMENTS = 1 << 62
"""Of a tensor, and of what a rank sends to another."""


def relative(file: str, directory: str) -> str:
    """A file's name as the user knows it: from the directory where the job ran.

    Args:
        file: The file's whole name.
        directory: Where the job ran.

    Returns:
        The name from there, or the whole name of a file that lies elsewhere.
    """
    prefix = directory.rstrip("/") + "/"
    return file.removeprefix(prefix) if file.startswith(prefix) else file


class Tables:
    """Numbers of strings, the same for all journals of a run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.sites: list[Place | None] = [None]
        self.callers: list[tuple[Place, ...]] = [()]
        self.specs: list[Spec] = [Spec()]
        self.groups: list[str] = []
        self._members = 0  # of these groups
        self._known: dict[tuple[str, str], int] = {("site", ""): 0, ("spec", ""): 0}
        self._known["callers", ""] = 0

    def site(self, text: str) -> int:
        """The number of a line; 0: none.

        Args:
            text: File, line and function of the innermost line of the user's, as
                `joined`; the lines behind it may follow.

        Returns:
            Its position in `sites`.
        """
        line = "\n".join(text.split("\n")[:_OF_A_LINE])
        return self._number("site", line, self.sites, self.place)

    def callers_of(self, text: str) -> int:
        """The number of the lines behind the first one; 0: none are known.

        Args:
            text: As for `site`.

        Returns:
            The position of the lines in `callers`.
        """
        above = "\n".join(text.split("\n")[_OF_A_LINE:])
        return self._number("callers", above, self.callers, self._places)

    def _places(self, text: str) -> tuple[Place, ...]:
        parts = text.split("\n")
        lines = (
            "\n".join(parts[at : at + _OF_A_LINE])
            for at in range(0, len(parts), _OF_A_LINE)
        )
        found = map(self.place, lines)
        return tuple(place for place in found if place is not None)

    def spec(self, text: str) -> int:
        """The number of what a call moves; 0: not known.

        Args:
            text: As `parse_spec` reads it.

        Returns:
            Its position in `specs`.

        Raises:
            ValueError: The text is damaged.
        """
        return self._number("spec", text, self.specs, parse_spec)

    def group(self, text: str) -> int:
        """The number of a group, by its name and members.

        Args:
            text: As `group_text` makes it.

        Returns:
            Its position in `groups`.

        Raises:
            ValueError: The text is damaged, or groups have too many members.
        """
        # Members may describe one group differently: a mesh with mixed-up names does.
        # And not each of them need have had as many processes before.
        name, _, often, ranks = (*text.split("\n"), "", "", "")[:4]
        within = _whole(often) % OFTEN if often else 0
        key = ("group", f"{name}\n{within}\n{ranks}")
        if key not in self._known:
            members = number_of_members(text)
            if self._members + members > _MOST_MEMBERS:
                raise ValueError("too many groups of too many ranks")
            self._members += members
            self._known[key] = len(self.groups)
            self.groups.append(text)
        return self._known[key]

    def place(self, text: str) -> Place | None:
        """A line, as the user knows it; None if the text names none.

        Args:
            text: File, line and function, as `joined`.

        Returns:
            The line, or None.
        """
        file, line, function = (*parted(text), "", "")[:3]
        if not line.isdigit():
            return None
        try:
            return self.named(Place(file, _whole(line, MOST_LINES), function))
        except ValueError:
            return None

    def named(self, place: Place) -> Place:
        """A line by the name of its file that the user knows.

        Args:
            place: A line with its file's whole name.

        Returns:
            The line with the name that `relative` makes of it.
        """
        file = relative(place.file, self._directory)
        return Place(file, place.line, place.function)

    def _number(self, kind: str, text: str, table: list[Any], make: Any) -> int:
        key = (kind, text)
        if key not in self._known:
            self._known[key] = len(table)
            table.append(make(text))
        return self._known[key]


def groups_of(texts: Iterable[str], world_size: int) -> tuple[Group, ...]:
    """Groups with names for readers: "world", torch's description, or its number.

    Args:
        texts: One for each group, as `group_text` makes them, in the order of their
            numbers.
        world_size: Number of ranks in the job.

    Returns:
        The groups in that order, each with a name of its own.
    """
    everyone = tuple(range(world_size))
    groups: list[Group] = []
    taken: set[str] = set()
    for text in texts:
        name, description = (*parted(text), "")[:2]
        ranks = members_of(text)
        label = f"group_{name}"
        if description not in {"", "undefined", "default_pg"}:
            label = description
        if ranks == everyone and (description == "default_pg" or name in {"", "0"}):
            label = WORLD
        label = "".join(c if c.isalnum() else "_" for c in label)
        if name in {SETUP, STORE}:
            label = name
        unique, n = label, 1
        while unique in taken:
            n += 1
            unique = f"{label}_{n}"
        taken.add(unique)
        groups.append(Group(unique, ranks))
    return tuple(groups)


def parse_spec(text: str) -> Spec:
    """Tensors and splits as the probe wrote them, e.g. `float32 4x3;int64 |1,2|2,1`.

    >>> parse_spec("float32 4x3;int64 ").tensors[1]
    Tensor(shape=(), dtype='int64')

    Args:
        text: Dtype and shape of each tensor; behind "|" what all-to-all sends and
            receives, by ranks of the group; on a second line the name of Horovod's
            tensor, and on a third what the user calls it, if that is another. Or,
            behind "=", a list of names in JSON instead.

    Returns:
        What the text says; an empty text tells no tensors.

    Raises:
        ValueError: The text is damaged.
    """
    if text.startswith("="):
        names_told = decoded(text[1:].encode(), list[str | int], names=True)
        return Spec(names=tuple(map(str, names_told)))
    moved, *names = text.split("\n")
    tensors, *splits = moved.split("|")
    return Spec(
        tuple(_tensor(word) for word in tensors.split(";") if word),
        (_numbers(splits[0]), _numbers(splits[1])) if len(splits) == 2 else None,
        tuple(name for name in names if name),
    )


def _tensor(word: str) -> Tensor:
    dtype, _, shape = word.partition(" ")
    sizes = tuple(_whole(size) for size in shape.split("x") if size)
    if prod(sizes) > _MOST_ELEMENTS:
        raise ValueError(f"no tensor has the shape {shape}")
    return Tensor(sizes, dtype)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_whole(number) for number in text.split(",") if number)


def _whole(text: str, most: int = _MOST_ELEMENTS) -> int:
    """A whole number as probes write it.

    Raises:
        ValueError: The text is none, or it is larger.
    """
    if not (text.isascii() and text.isdigit() and len(text) < _LETTERS):
        raise ValueError(f"{text[:_LETTERS]!r} is no number")
    if (number := int(text)) > most:
        raise ValueError(f"{number} is too large")
    return number


_LETTERS = 20  # of a number of 62 bits
