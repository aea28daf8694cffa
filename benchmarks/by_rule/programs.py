"""Healthy programs: where they are, and on how many ranks they are made to run."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = re.compile(r"^#\s*ranks:\s*([0-9][-0-9, ]*)", re.MULTILINE | re.IGNORECASE)
_ARGUMENTS = re.compile(
    r"^#\s*(?:args|arguments):\s*(.*)$", re.MULTILINE | re.IGNORECASE
)
_CONSTANT = re.compile(r"^RANKS(?::.*)?\s*=\s*(\d+)", re.MULTILINE)

DEFAULT_RANKS = 2
HEAD_LINES = 40
"""In which a header comment is looked for."""


@dataclass(frozen=True, slots=True)
class Program:
    """A healthy program.

    Attributes:
        name: For reports; the file's name without its ending.
        path: The script.
        text: Its source.
        ranks: Numbers of ranks it runs on, the one it was written for first.
        arguments: What it is to be given.
    """

    name: str
    path: Path
    text: str
    ranks: tuple[int, ...]
    arguments: tuple[str, ...] = ()


def programs_in(places: Iterable[Path]) -> Iterator[Program]:
    """The programs of folders, and those that are named themselves."""
    for place in places:
        paths = sorted(place.glob("[!_]*.py")) if place.is_dir() else [place]
        for path in paths:
            if not path.name.startswith("__"):
                yield program_of(path)


def program_of(path: Path) -> Program:
    """A program as its header describes it.

    The header is a comment `# ranks: 2` or `# ranks: 2, 4` or `# ranks: 2-4` near the
    top, or a constant `RANKS = 2`; arguments may stand in `# arguments: --epochs 1`.
    """
    text = path.read_text()
    head = "\n".join(text.splitlines()[:HEAD_LINES])
    found = _ARGUMENTS.search(head)
    arguments = tuple(shlex.split(found[1])) if found else ()
    return Program(path.stem, path.absolute(), text, ranks_of(text), arguments)


def ranks_of(text: str) -> tuple[int, ...]:
    """Numbers of ranks that a program's text names.

    >>> ranks_of("# ranks: 2-4"), ranks_of("RANKS = 3"), ranks_of("import torch")
    ((2, 3, 4), (3,), (2,))
    >>> ranks_of("# ranks: 4, 2 (two pairs)")
    (4, 2)
    """
    head = "\n".join(text.splitlines()[:HEAD_LINES])
    if match := _HEADER.search(head):
        found: list[int] = []
        for part in filter(None, re.split(r"[, ]+", match[1].strip(" -,"))):
            first, _, last = part.partition("-")
            if first:
                found.extend(range(int(first), int(last or first) + 1))
        if found:
            return tuple(dict.fromkeys(found))
    if match := _CONSTANT.search(text):
        return (int(match[1]),)
    return (DEFAULT_RANKS,)


def digest(text: str) -> str:
    """Of a text, short; what was found in another text is not this one's."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
