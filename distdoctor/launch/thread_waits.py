"""Tells from a thread's stack whether only another thread can let it go on.

Source: CPython 3.10 to 3.14, Lib/threading.py, Lib/queue.py and
Lib/concurrent/futures/thread.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

_WAITS = ("/threading.py", "/queue.py")
_ENDLESS = {"None", "-1"}
_UNTIMED = {"_shutdown", "acquire", "__enter__"}  # functions without a limit of time
_IDLE_WORKER = ("/concurrent/futures/thread.py", "_worker")


def waits_for_a_thread(frames: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a thread waits without end for a lock, a queue or a thread's end.

    A lock that is taken by a line of the user's own leaves no frame of Python's, and is
    not told from work.

    Args:
        frames: As py-spy tells them, the innermost first, with local variables.
    """
    if not frames:
        return False
    file = str(frames[0]["filename"])
    function = str(frames[0]["name"]).rpartition(".")[2]
    if file.endswith(_IDLE_WORKER[0]):
        return function == _IDLE_WORKER[1]
    waits = list(
        takewhile(lambda frame: str(frame["filename"]).endswith(_WAITS), frames)
    )
    limits = [
        local["repr"]
        for frame in waits
        for local in frame.get("locals") or ()
        if local["name"] == "timeout"
    ]
    if not waits or not (limits or function in _UNTIMED):
        return False
    return all(limit in _ENDLESS for limit in limits)
