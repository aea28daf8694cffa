"""torchrun's summary of a failed job, and files in which ranks leave their error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from distdoctor.postmortem.job_output.line_meanings import status_of
from distdoctor.postmortem.job_output.printed_tracebacks import (
    PrintedException,
    TracebackParser,
)

_RANK = re.compile(r"\s*rank +: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,5})\)")
_CODE = re.compile(r"\s*exitcode +: (?P<code>-?\d{1,4}) \(pid: (?P<pid>\d{1,10})\)")
_HOST = re.compile(r"\s*host +: (?P<host>\S{1,255})")
_TITLE = re.compile(r"\s*Root Cause \(first observed failure\):")
_TRACEBACK = re.compile(r"\s*traceback : ")
_LAST = re.compile(r"\s*={8,}\s*$")

_LARGEST_ERROR = 4 << 20


@dataclass(slots=True)
class WorkerEnd:
    """How torchrun saw a rank end.

    Attributes:
        rank: The global rank.
        local: Among those of its machine.
        pid: Its process.
        status: As a shell counts it: 128 + n is signal n.
        host: Its machine.
        first: torchrun saw it end first, to the second; it may still be a victim.
        raised: The exception that the rank left in its file of errors.
    """

    rank: int
    local: int
    pid: int = -1
    status: int | None = None
    host: str = ""
    first: bool = False
    raised: PrintedException | None = None


@dataclass(slots=True)
class SummaryParser:
    """Reads the summary from the lines of one stream."""

    inside: bool = False
    _first: bool = False
    _host: str = ""
    _end: WorkerEnd | None = None
    _traceback: TracebackParser | None = None

    def feed(self, text: str, number: int) -> WorkerEnd | None:
        """Read a line.

        Args:
            text: The line, without marks.
            number: Its number in the file.

        Returns:
            A rank's end, when it is known whole.
        """
        if not self.inside:
            if text.rstrip() in {"Failures:", "Root Cause (first observed failure):"}:
                self.inside, self._first = True, text.startswith("Root")
            return None
        if _TITLE.match(text):
            done, self._first = self._done(), True
            return done
        if _LAST.match(text):
            self.inside = False
            return self._done()
        if text.startswith("[") and text.rstrip().endswith("]:"):
            return self._done()
        if found := _HOST.match(text):
            self._host = found["host"]
        elif found := _RANK.match(text):
            self._end = WorkerEnd(
                int(found["rank"]), int(found["local"]), host=self._host
            )
            self._end.first = self._first
        elif self._end is not None and (found := _CODE.match(text)):
            self._end.pid = int(found["pid"])
            self._end.status = status_of(int(found["code"]))
        elif self._end is not None:
            self._cause(self._end, text, number)
        return None

    def _cause(self, end: WorkerEnd, text: str, number: int) -> None:
        if _TRACEBACK.match(text):
            self._traceback = TracebackParser()
        if self._traceback is not None and end.raised is None:
            # torchrun moves all lines but the first two places to the right.
            own = text.removeprefix("  ")
            end.raised = self._traceback.feed(own, number)

    def _done(self) -> WorkerEnd | None:
        end, self._end, self._traceback = self._end, None, None
        return end if end is not None and end.status is not None else None


def error_in_file(content: bytes) -> PrintedException | None:
    """What a rank wrote into its file of errors (`@record`).

    Args:
        content: The file.

    Returns:
        The exception; None: it is no such file.
    """
    if len(content) > _LARGEST_ERROR:
        return None
    try:
        message = json.loads(content)["message"]
        callstack = message["extraInfo"]["py_callstack"]
        text = str(message["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    parser = TracebackParser()
    found = None
    for number, line in enumerate(str(callstack).splitlines()):
        found = parser.feed(line, number) or found
    if found is not None:
        return found
    error, _, rest = text.partition(": ")
    return PrintedException(error.rpartition(".")[2][:300], rest[:4000], None, "")


def is_error_file(name: str, head: bytes) -> bool:
    """Whether a file is one in which a rank left its error.

    Args:
        name: The file's name.
        head: Its first bytes.
    """
    return (
        name.endswith(".json")
        and head.lstrip()[:1] == b"{"
        and (b'"py_callstack"' in head and b'"extraInfo"' in head)
    )
