"""The terminal while the job runs: its output, and one live line below."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from distdoctor.launch.audience import surface_of

if TYPE_CHECKING:
    from rich.status import Status

    from distdoctor.launch.audience import JobProgress

_ROOM = 2  # columns left of the live lines
_LONGEST_STATE = 2000  # bytes of a line without an end that are looked at


class Screen:
    """Passes the job's output through, unchanged, and shows how it stands.

    Args:
        divert: Send the job's stdout to stderr, because a report for machines is to
            have stdout for itself.
        live: Show the live line, and below it the lines that ranks have not ended, such
            as bars; they disappear at the end.
        started: Is called once, when the job has been started.

    Attributes:
        unread: Whether the one who read the output has gone, as `head` does.
        surface: What the output ends on.
    """

    def __init__(
        self, divert: bool, live: bool, started: Callable[[], None] | None = None
    ) -> None:
        self.unread = False
        self._started = started
        self._out = (sys.stderr if divert else sys.stdout).buffer
        self._err = sys.stderr.buffer
        self.surface = surface_of(self._out, self._err, redrawn=live)
        self._status: Status | None = None
        self._standing = "starting the ranks"
        self._unfinished: list[bytes] = []
        self._ended = True
        if live:
            self._status = _live_line(self._standing)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError, ValueError):
            if self._status is not None:
                self._status.stop()
            if not self._ended:  # what follows begins on a line of its own
                _write(self._out, b"\n")

    def output(self, stream: str, text: bytes) -> None:
        """Write what the job has written.

        Raises:
            OSError: It cannot be written, for want of a reader or of space.
        """
        if self._status is not None:
            self._status.stop()
        try:
            _write(self._out if stream == "stdout" else self._err, text)
            if stream == "stdout":
                self._ended = text.endswith(b"\n")
        except BrokenPipeError:
            self.unread = True
            raise
        finally:
            if self._status is not None:
                self._status.start()

    def unfinished(self, lines: list[bytes]) -> None:
        """Show the lines that ranks have not ended."""
        self._unfinished = lines
        self._draw()

    def progress(self, progress: JobProgress) -> None:
        """Update the live line."""
        if self._started is not None:
            self._started()
            self._started = None
        self._standing = (
            f"{progress.alive} of {progress.ranks} ranks alive · "
            f"{progress.steps} steps · {progress.seconds:.0f} s"
        )
        self._draw()

    def _draw(self) -> None:
        if self._status is None:
            return
        from rich.text import Text

        room = self._status.console.width - _ROOM
        shown = Text(self._standing)
        for line in self._unfinished:
            begin = line[:_LONGEST_STATE].decode(errors="replace")
            state = Text.from_ansi(begin)
            state.truncate(room, overflow="ellipsis")
            shown.append("\n").append_text(state)
        self._status.update(shown)


@contextmanager
def status_line(text: str) -> Iterator[Callable[[str], None]]:
    """A live line on stderr while a command works, for which somebody waits.

    It disappears at the end. Where stderr is no terminal, there is none.

    Args:
        text: What is being done.

    Yields:
        A function that says something else in its place.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text

    status = _live_line(text)
    status.start()
    try:
        yield lambda now: status.update(Text(now))
    finally:
        with suppress(OSError, ValueError):  # nobody reads any more
            status.stop()


def _live_line(text: str) -> Status:
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(text))


def _write(file: IO[bytes], text: bytes) -> None:
    """Write to a file at once, and hold no lock of Python's meanwhile.

    The process can end while a thread stands here, because nobody reads.
    """
    file.flush()
    number, left = file.fileno(), memoryview(text)
    while left:
        try:
            left = left[os.write(number, left) :]
        except BlockingIOError:  # another program had the terminal not wait
            select.select([], [number], [])
