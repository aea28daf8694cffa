"""A page of text for people, of a given width, that cannot control their terminal."""

from __future__ import annotations

import io

from rich.console import Console


class Page:
    """What is printed on it becomes text.

    Args:
        width: Columns.
        colour: Whether to use terminal colours.
    """

    def __init__(self, width: int, colour: bool) -> None:
        self._stream = io.StringIO()
        self._console = Console(
            file=self._stream,
            width=width,
            force_terminal=colour,
            color_system="standard" if colour else None,
            highlight=False,
            emoji=False,
            markup=False,
            legacy_windows=False,
        )
        self.print = self._console.print

    def text(self) -> str:
        """All that was printed, without blanks at the ends of lines."""
        lines = self._stream.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"


def plain(text: str) -> str:
    """Text without control characters: names of files and errors may hold some."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
