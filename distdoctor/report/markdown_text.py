"""Text that is text in Markdown, whatever is in it, and code that stays code.

Markdown of code hosts knows more than the standard: addresses become links by
themselves, `@name` calls somebody, `#1` and `GH-1` point to issues. A backslash does
not hinder those, for they are looked for behind the Markdown; a space of no width does.
"""

from __future__ import annotations

import re

from distdoctor.report.plain_text import plain

_NOTHING = "&#8203;"  # a space of no width: breaks words that mean something

_MARKS = re.compile(r"[\\`*_\[\]<>|~&$]")
_LINKS = re.compile(r"(?i)(@|#(?=\d)|\bGH-(?=\d)|www(?=\.)|:(?=//)|(?:mailto|xmpp):)")
_AT_FIRST = re.compile(r"^(\d*)([-+=#.)])")
_CODE = re.compile(r"`([^`]+)`")
_TICKS = re.compile(r"`+")


def prose(text: str, most: int = 2000) -> str:
    r"""A text as one line of Markdown in which nothing but `code` has a meaning.

    >>> print(prose("see <b>, @all and `x<y`"))
    see \<b\>, @&#8203;all and `x<y`

    Args:
        text: It may quote anything.
        most: Characters of it that are kept.
    """
    parts = _CODE.split(_one_line(text, most))
    return "".join(
        code(part) if number % 2 else _escaped(part, first=not number)
        for number, part in enumerate(parts)
    )


def _one_line(text: str, most: int) -> str:
    return plain(clipped(text, most).replace("\n", " ")).strip()


def _escaped(text: str, *, first: bool) -> str:
    parts = [
        _MARKS.sub(r"\\\g<0>", part) + _NOTHING * (number % 2)
        for number, part in enumerate(_LINKS.split(text))
    ]
    words = "".join(parts)
    return _AT_FIRST.sub(r"\1\\\2", words) if first else words


def code(text: str, most: int = 300) -> str:
    """A text as a span of code on one line.

    >>> print(code("a`b"))
    ``a`b``

    Args:
        text: It may quote anything.
        most: Characters of it that are kept.
    """
    shown = _one_line(text, most).strip()
    if not shown:
        return ""
    ticks = "`" * (1 + max(map(len, _TICKS.findall(shown)), default=0))
    around = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{around}{shown}{around}{ticks}"


def block(text: str, most: int) -> str:
    """Lines as a block of code, which ends where it should.

    Args:
        text: It may quote anything.
        most: Bytes of the block in UTF-8; what is left out is said in it.
    """
    lines = [plain(line) for line in text.rstrip("\n").split("\n")]
    ticks = [run for line in lines for run in _TICKS.findall(line)]
    longest = max(map(len, ticks), default=0)
    fence = "`" * max(3, longest + 1)
    frame = len(f"{fence}text\n\n{fence}\n… and 1,000,000 more lines")
    kept: list[str] = []
    room = most - frame
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    more = [f"… and {left:,} more lines"] if left else []
    return "\n".join([f"{fence}text", *kept, *more, fence])


def clipped(text: str, most: int) -> str:
    """A text, without its end if it is too long."""
    return text if len(text) <= most else text[: most - 1] + "…"
