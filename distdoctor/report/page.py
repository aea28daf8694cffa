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


def spelled(text: str, encoding: str) -> str:
    """Text with characters that an encoding has, as like as can be.

    >>> spelled("▸ 1 │ rate |▁▄█|", "ascii")
    '> 1 | rate |_-#|'
    >>> spelled("▸ 1 │ rate |▁▄█|", "utf-8")
    '▸ 1 │ rate |▁▄█|'
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        replaced = text.translate(_ASCII).encode(encoding, "backslashreplace")
        return replaced.decode(encoding)
    return text


_ASCII = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
        "▸": ">",
        "│": "|",
        "·": "-",
        "…": "...",
        "✗": "x",
        "×": "x",
    }
)
"""What stands for the characters of a report that not each terminal has."""
