"""The events of a Chrome trace, block by block, in constant memory.

Such a file is a JSON array of events, or an object with one. It may be torn anywhere,
have no closing bracket, and be larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

BLOCK_BYTES = 1 << 20

_MOST_BYTES = 1 << 37  # of one file, unpacked
_LONGEST = 4 << 20  # of what has no end of an event in it: not a trace

SEAM = re.compile(rb"\}\s{0,100},\s{0,100}(?=\{)")
"""What lies between two events, and, where their arguments are nested, within one."""


def blocks(file: IO[bytes], before: bytes = b"") -> Iterator[bytes]:
    """Parts of a file that end where an event ends, but for the last.

    Args:
        file: Open for reading.
        before: What was read of the events already.

    Yields:
        Text. What has no end of an event for some megabytes is passed over.

    Raises:
        OSError: It cannot be read further.
        EOFError: What it is packed with ends too early.
    """
    rest, read = before, len(before)
    while (block := file.read(BLOCK_BYTES)) and read < _MOST_BYTES:
        read += len(block)
        whole = rest + block
        cut = _last_cut(whole)
        rest = whole[cut:]
        if cut:
            yield whole[:cut]
        elif len(rest) > _LONGEST:
            rest = b""
    yield rest


def _last_cut(text: bytes) -> int:
    """Where the last event begins that may not be whole; 0: nowhere.

    Few things in an event look like the seam of two; readers take what a block lacks
    for lost.
    """
    end = len(text)
    while (end := text.rfind(b"}", 0, end)) >= 0:
        if seam := SEAM.match(text, end):
            return seam.end()
    return 0
