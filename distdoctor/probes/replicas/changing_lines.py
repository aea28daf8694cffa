"""Finds the user's line that changes a value, by checking it after each line.

That is slow, and so it is done for short whiles alone, when it is known already that a
change happens there again and again. It leaves alone programs that are traced already,
by a debugger or for coverage, and those that are compiled.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.harmless import harmless

MOST_LINES = 20_000
"""Looked after in one while."""


class Lines:
    """Checks a value after each line of user code on this thread, until stopped.

    Args:
        look: Gives the value that is checked.
        changed: Called with the line after which it was another, the first time.
    """

    def __init__(self, look: Callable[[], int], changed: Callable[[str], None]) -> None:
        self._look, self._changed = look, harmless(changed)
        self._last: tuple[FrameType, int] | None = None
        self._seen = 0
        self._left = MOST_LINES
        self._on = False
        self._after = harmless(self._line)

    def start(self, frame: FrameType | None) -> bool:
        """Start tracing.

        Args:
            frame: The innermost one that is running.

        Returns:
            Whether tracing was possible.
        """
        if sys.gettrace() is not None or compiles():
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        self._seen = self._look()
        self._on = True
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                if self._last is None:
                    self._last = frame, frame.f_lineno
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)
        return True

    def stop(self) -> None:
        """Stop tracing, and check after the last line."""
        if self._on:
            self._after()
            self._end()

    def _end(self) -> None:
        self._on = False
        self._last = None
        if sys.gettrace() == self._trace:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if not self._on:
            frame.f_trace = None
            return None
        if not is_users(frame.f_code.co_filename):
            return None
        if event == "line":
            self._after()
            if not self._on:
                return None
            self._last = frame, frame.f_lineno
        return self._trace

    def _line(self) -> None:
        """A line is over."""
        self._left -= 1
        seen = self._look()
        if seen != self._seen and self._last is not None:
            code, line = self._last[0].f_code, self._last[1]
            self._end()
            self._changed(text_of(code.co_filename, line, code.co_qualname))
        elif self._left <= 0:
            self._end()


def compiles() -> bool:
    """Whether torch.compile is at work in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and utils.counters["frames"])
