"""Stacks of a dump → the user's own lines."""

from __future__ import annotations

import re
from typing import Any

from distdoctor.model.events import Place

_MOST_FRAMES = 256
_LIBRARY = re.compile(
    r"^<|^(?:torch|torchgen)/|/(?:site|dist)-packages/|/lib/python\d[^/]*/"
    r"|\.(?:cpp|cc|cxx|cu|h|hpp|so)\b"
)
_TORCH = re.compile(r"^<|(?:^|/)torch/|/lib/python\d[^/]*/(?!(?:site|dist)-packages/)")


def chain_of(stack: Any) -> tuple[Place, ...]:
    """The lines of the user's by which a call was made, innermost first.

    Args:
        stack: Frames as a dump has them, innermost first.

    Returns:
        Those outside of installed packages; if there are none, those outside of torch;
        empty if nothing of that kind is there.
    """
    if not isinstance(stack, list | tuple):
        return ()
    places = []
    for frame in stack[:_MOST_FRAMES]:
        if isinstance(frame, dict):
            file, line, name = map(frame.get, ("filename", "line", "name"))
            if isinstance(file, str) and isinstance(line, int) and 0 < line < 1 << 31:
                function = name if isinstance(name, str) else ""
                places.append(Place(file[:4096], line, function[:256]))
    own = tuple(place for place in places if not _LIBRARY.search(place.file))
    return own or tuple(
        place
        for place in places
        if not _TORCH.search(place.file) and place.file.endswith(".py")
    )


def function_of_torch(stack: Any, prefix: str) -> str:
    """The name of torch's own function by which a call was made.

    Args:
        stack: Frames as a dump has them, innermost first.
        prefix: How the name begins.

    Returns:
        The innermost such name; empty if there is none.
    """
    for frame in stack[:_MOST_FRAMES] if isinstance(stack, list | tuple) else ():
        if isinstance(frame, dict):
            file, name = frame.get("filename"), frame.get("name")
            named = isinstance(name, str) and name.startswith(prefix)
            if named and isinstance(file, str) and _TORCH.search(file):
                return str(name)
    return ""
