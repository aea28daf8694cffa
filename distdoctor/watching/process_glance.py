"""What one line of /proc tells of a process: whether it lives, since when, its memory.

Source: proc(5), /proc/PID/stat.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATE, _STARTED, _RESIDENT = 0, 19, 21  # behind the name of the program


@dataclass(frozen=True, slots=True)
class Glance:
    """A process at one moment.

    Attributes:
        lives: Whether it has not ended.
        started_s: When it began, seconds since the machine did.
        memory_bytes: Resident.
        is_stopped: By a signal, or by a debugger.
    """

    lives: bool
    started_s: float = 0.0
    memory_bytes: int = 0
    is_stopped: bool = False


def glance_at(pid: int) -> Glance:
    """Look at a process; nothing is asked of it.

    Args:
        pid: Its number.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        return Glance(
            fields[_STATE] not in {"Z", "X"},
            int(fields[_STARTED]) / _TICKS_PER_S,
            int(fields[_RESIDENT]) * _PAGE_BYTES,
            fields[_STATE] in {"T", "t"},
        )
    except (OSError, ValueError, IndexError):
        return Glance(False)


def is_the_one(glance: Glance, begun_ns: int) -> bool:
    """Whether a process lives, and is the one that began a journal.

    Its number may be another's by now, which was started later.

    Args:
        glance: The process that has the number now.
        begun_ns: When the journal was begun, on the monotonic clock.
    """
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return glance.lives and glance.started_s < begun_ns / 1e9 + asleep_s + 1.0


def environment_of(pid: int) -> dict[str, str]:
    """Variables that a process was started with; empty: it may not be read.

    Args:
        pid: Its number.
    """
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (one.decode(errors="replace").partition("=") for one in data.split(b"\0"))
    return {name: value for name, _, value in pairs if name}
