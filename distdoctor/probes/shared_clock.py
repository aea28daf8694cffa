"""The clock by which ranks tell the time of what they saw: the same on all nodes.

Monotonic clocks begin when a machine does. A rank of another node than the head's is
told by how much its own is ahead. Times of records in the journal are those of the
rank's machine, and translated where they are gathered.
"""

from __future__ import annotations

import os
import time

from distdoctor.journal.environment import CLOCK_VARIABLE


def _told() -> int:
    text = os.environ.get(CLOCK_VARIABLE, "0")
    return int(text) if text.removeprefix("-").isdigit() else 0


_AHEAD_NS = _told()


def now_ns() -> int:
    """The monotonic clock of the head's machine, in nanoseconds."""
    return time.monotonic_ns() - _AHEAD_NS
