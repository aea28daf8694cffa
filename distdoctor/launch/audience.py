"""Who hears a job while it runs: what it prints, and how it stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Protocol


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A summary of a job's progress, for one status line."""

    seconds: float
    ranks: int
    alive: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What the job's output ends on; its ranks find the same behind stdout and stderr.

    Attributes:
        terminals: The descriptor of the terminal for each of "stdout" and "stderr" that
            ends on one.
        joined: Both end on the same file, so that their common order can be seen.
        redrawn: Lines that are not ended yet are shown by `Audience.unfinished`.
    """

    terminals: Mapping[str, int] = field(default_factory=dict)
    joined: bool = False
    redrawn: bool = False


class Audience(Protocol):
    """Interface that receives the job's output and progress while it runs."""

    @property
    def surface(self) -> Surface:
        """What the output ends on."""

    def output(self, stream: str, text: bytes) -> None:
        """Receive lines of "stdout" or "stderr", the last one perhaps without its end.

        Only one thread calls it; it may take its time.
        """

    def unfinished(self, lines: list[bytes]) -> None:
        """Receive the present state of all lines without an end, such as bars.

        Called a few times a second, from the thread of `output`, if the surface is
        redrawn.
        """

    def progress(self, progress: JobProgress) -> None:
        """Receive the progress; called several times a second."""


def surface_of(stdout: IO[bytes], stderr: IO[bytes], *, redrawn: bool) -> Surface:
    """The surface of two files that the output is written to.

    Args:
        stdout: Where lines of the job's stdout go.
        stderr: Where lines of its stderr go.
        redrawn: As in `Surface`; it holds for what ends on a terminal.
    """
    terminals = {}
    joined = False
    with suppress(OSError, ValueError):  # closed, or no file at all
        numbers = {"stdout": stdout.fileno(), "stderr": stderr.fileno()}
        terminals = {name: n for name, n in numbers.items() if os.isatty(n)}
        joined = os.path.sameopenfile(*numbers.values())
    return Surface(terminals=terminals, joined=joined, redrawn=redrawn)
