"""The terminal while the job runs: its output, and one live line below."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.status import Status

    from distdoctor.launch.supervisor import Progress


class Screen:
    """Passes the job's output through, unchanged, and shows how it stands.

    Args:
        divert: Send the job's stdout to stderr, because a report for machines is to
            have stdout for itself.
        live: Show the live line; it disappears at the end.
    """

    def __init__(self, divert: bool, live: bool) -> None:
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
            self._status.stop()

    def output(self, stream: str, line: bytes) -> None:
        """Write a line of the job."""
        if self._status is not None:
            self._status.stop()
        target = self._out if stream == "stdout" else self._err
        target.write(line)
        target.flush()
        if self._status is not None:
            self._status.start()

    def progress(self, progress: Progress) -> None:
        """Update the live line."""
        if self._status is not None:
            self._status.update(
                f"{progress.alive} of {progress.ranks} ranks alive · "
                f"{progress.steps} steps · {progress.seconds:.0f} s"
            )
