"""Text that cannot control a terminal, whatever names of files and errors are in it."""

from __future__ import annotations


def plain(text: str) -> str:
    """Text without control characters: they are shown as escapes.

    >>> len(plain(chr(27)))
    4

    Args:
        text: It may quote anything.

    Returns:
        The same on one line, each character of it printable.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def plain_lines(text: str) -> str:
    """The same of a text of several lines, which stay.

    Args:
        text: It may quote anything.

    Returns:
        The text; all but the ends of its lines is printable.
    """
    return "\n".join(map(plain, text.split("\n")))


def job_size(world_size: int) -> str:
    """How many ranks a job has, for the head of a report.

    Args:
        world_size: Of the job; 0: nothing that it left names a rank.
    """
    if not world_size:
        return "ranks that nothing names"
    return f"{world_size} rank{'s' * (world_size != 1)}"
