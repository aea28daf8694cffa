"""Takes from horovodrun's output what the launcher says of the end of its ranks.

It marks each line of a rank by `[1]<stdout>:`, and has no mark for its own. When a rank
fails it prints a traceback of itself, which is about nothing in the job.

Source: Horovod 0.28.1, runner/gloo_run.py and runner/common/util/safe_shell_exec.py.
"""

from __future__ import annotations

import re

_MARK = re.compile(rb"\[\d+\]<std(?:out|err)>:")
_ENDS = re.compile(
    rb"Process \d+ exit with status code -?\d+\.\s*$"
    rb"|Terminating remaining workers after failure of Process \d+\.\s*$"
)

_TRACEBACK = b"Traceback (most recent call last):"

_FAILED = re.compile(
    rb"RuntimeError: Horovod detected that one or more processes exited with non-zero "
    rb"status.*?(?:Exit code: \S+\s*|\Z)",
    re.DOTALL,
)

_LEAKED = re.compile(
    rb"^\S*resource_tracker(?:\.py:\d+)?: UserWarning: .*leaked semaphore"
)
"""Of the launcher that we have killed: its semaphores were removed for it."""

_WARNS = b"  warnings.warn("  # the line of Python that stands below such a warning

_LONGEST_TRACEBACK = 300  # lines; what is longer is not the launcher's


class HorovodrunLines:
    """The lines of one of horovodrun's two streams, without its own words on an end."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._warned = False

    def take(self, line: bytes) -> list[bytes]:
        """The lines to pass on, now that this one has come."""
        warned, self._warned = self._warned, False
        if _MARK.match(line):
            return [*self.rest(), line]
        if _ENDS.match(line):
            return []
        if _LEAKED.match(line):
            self._warned = True
            return []
        if warned and line.startswith(_WARNS):
            return []
        if not self._held and not line.startswith(_TRACEBACK):
            return [line]
        self._held.append(line)
        return self.rest() if len(self._held) > _LONGEST_TRACEBACK else []

    def rest(self) -> list[bytes]:
        """The lines that were held back, and are no traceback of a failed rank."""
        held, self._held = b"".join(self._held), []
        if found := _FAILED.search(held):
            begin = held.rindex(_TRACEBACK, 0, found.start())
            held = held[:begin] + held[found.end() :]
        return held.splitlines(keepends=True)
