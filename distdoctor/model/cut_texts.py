"""Texts of programs, cut to what a sentence can hold."""

from __future__ import annotations

_LEAST = 0.6  # of the length: a word that begins earlier is cut, as a path may be


def first_line(text: str, longest: int) -> str:
    """The first line of a text; of a long one, whole words and an ellipsis.

    Args:
        text: Such as an exception's message.
        longest: Characters, the ellipsis among them.

    Returns:
        The line; empty if the text is.
    """
    line = text.partition("\n")[0].rstrip()
    if len(line) <= longest:
        return line
    kept = line[: longest - 1]
    words = kept.rpartition(" ")[0] if line[longest - 1] != " " else kept
    return (words if len(words) >= _LEAST * longest else kept).rstrip() + "…"
