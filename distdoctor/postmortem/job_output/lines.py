"""Bytes of a job's output → lines, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import IO

_BLOCK_BYTES = 1 << 20

_LONGEST = 16_384
"""Characters of a line that are read; progress bars and dumped tensors are longer."""

_MOST_BYTES = 1 << 36
"""Of one file, unpacked: a bomb is larger, and a job's output is not."""

_COLOUR = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])"
)
_ENDS = re.compile(r"[\r\n]+")


def lines(
    file: IO[bytes], is_wanted: Callable[[bytes], bool]
) -> Iterator[list[str] | None]:
    """The lines of a file, block by block.

    A carriage return ends a line as well, for progress bars. Colours are taken off.

    Args:
        file: Open for reading.
        is_wanted: Whether a block may say anything; it is asked once for each.

    Yields:
        The lines of a block; None for blocks that were passed over.

    Raises:
        OSError: It cannot be read further.
        EOFError: What it is packed with ends too early.
    """
    rest, read = b"", 0
    while (block := file.read(_BLOCK_BYTES)) and read < _MOST_BYTES:
        read += len(block)
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if not end and len(rest) < _BLOCK_BYTES:
            rest += block
            continue
        whole, rest = rest + block[:end], block[end:]
        yield _split(whole) if is_wanted(whole) else None
    if rest:
        yield _split(rest) if is_wanted(rest) else None


def _split(block: bytes) -> list[str]:
    text = block.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return [line[:_LONGEST] for line in _ENDS.split(text)]
