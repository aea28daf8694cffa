"""The terminal while the job runs: its output, and one live line below."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.status import Status

    from distdoctor.launch.supervisor import JobProgress


class Screen:
    """Passes the job's output through, unchanged, and shows how it stands.

    Args:
        divert: Send the job's stdout to stderr, because a report for machines is to
            have stdout for itself.
        live: Show the live line; it disappears at the end.
        started: Is called once, when the job has been started.

    Attributes:
        unread: Whether the one who read the output has gone, as `head` does.
    """

    def __init__(
        self, divert: bool, live: bool, started: Callable[[], None] | None = None
    ) -> None:
        self.unread = False
        self._started = started
        self._out = (sys.stderr if divert else sys.stdout).buffer
        self._err = sys.stderr.buffer
        self._status: Status | None = None
        if live:
            from rich.console import Console

            self._status = Console(stderr=True).status("starting the ranks")

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
        if self._status is not None:
            with suppress(OSError):
                self._status.stop()

    def output(self, stream: str, line: bytes) -> None:
        """Write a line of the job.

        Raises:
            OSError: It cannot be written, for want of a reader or of space.
        """
        try:
            self._write(stream, line)
        except BrokenPipeError:
            self.unread = True
            raise

    def _write(self, stream: str, line: bytes) -> None:
        if self._status is not None:
            self._status.stop()
        target = self._out if stream == "stdout" else self._err
        target.write(line)
        target.flush()
        if self._status is not None:
            self._status.start()

    def progress(self, progress: JobProgress) -> None:
        """Update the live line."""
        if self._started is not None:
            self._started()
            self._started = None
        if self._status is not None:
            self._status.update(
                f"{progress.alive} of {progress.ranks} ranks alive · "
                f"{progress.steps} steps · {progress.seconds:.0f} s"
            )
