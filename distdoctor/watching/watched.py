"""What a screen needs of a job that is watched, whichever way it is looked at."""

from __future__ import annotations

from typing import Protocol

from distdoctor.watching.snapshot import Snapshot


class Watchable(Protocol):
    """A job that can be looked at again and again.

    Attributes:
        every_s: Seconds from one look to the next, at least.
        title: The job, for whoever chooses among several.
    """

    every_s: float

    @property
    def title(self) -> str:
        """The job, in a line."""

    def look(self) -> Snapshot:
        """Look once. What goes wrong meanwhile is told in the snapshot."""

    def last_calls(self, rank: int) -> list[str]:
        """What a rank has called lately, or its stack, in lines."""
