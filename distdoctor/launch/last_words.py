"""What a job said last: often the only word on why it failed."""

from __future__ import annotations

import re

_LONGEST = 300

_SAYS_SOMETHING = re.compile(rb"[0-9A-Za-z\x80-\xff]")
"""In a line that is no mere ruler; bytes above are letters of some language's."""

_SHELLS = re.compile(rb"^\[\w+\](?:<stderr>)?:(?:Terminated|Killed)\s*$")
"""What horovodrun's shell says of a rank that a signal ended: not the job's words."""

_RANKS_MARK = re.compile(rb"^\[(?:\d+,)?\w+\](?:<std(?:out|err)>)?: ?")
"""torchrun's, ours, that of `horovodrun --gloo`, and that of mpirun."""


class LastWords:
    """The last meaningful line of a job's output, and the last one of a rank."""

    def __init__(self) -> None:
        self._line = self._ranks_line = b""

    def hear(self, text: bytes, *, of_a_rank: bool) -> None:
        """Look at output as it comes.

        Args:
            text: Whole lines.
            of_a_rank: They came by a rank's own channel, without a mark in them.
        """
        last = b""
        for line in reversed(text.splitlines()):
            if not _SAYS_SOMETHING.search(line) or _SHELLS.match(line):
                continue
            if of_a_rank:
                self._line = self._ranks_line = line.strip()
                return
            mark = _RANKS_MARK.match(line)
            words = line[mark.end() :].strip() if mark else line.strip()
            last = last or words
            if mark and words:
                self._ranks_line = words
                break
        self._line = last or self._line

    def text(self, *, of_a_rank: bool) -> str:
        """The last line, without the mark of its rank; "" if there is none.

        Args:
            of_a_rank: Only lines of ranks count, if there are any.
        """
        line = (of_a_rank and self._ranks_line) or self._line
        return line[:_LONGEST].decode(errors="replace")
