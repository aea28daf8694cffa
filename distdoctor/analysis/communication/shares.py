"""Where what a loop goes through was dealt out among ranks."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.analysis.communication.branches import program_of
from distdoctor.analysis.reasons import pointers
from distdoctor.analysis.source.shares import shares
from distdoctor.model.events import Place
from distdoctor.model.findings import Location
from distdoctor.model.run import Run

DEALT_OUT = "its share of what the loop goes through is taken here"


def dealt_out(run: Run, loop: Place, ranks: Iterable[int]) -> tuple[Location, ...]:
    """Pointers to the lines that give ranks their shares of a loop's items.

    Shares of one length each need no word; those of ranks that made other numbers of
    rounds are where to look.
    """
    return pointers(shares(program_of(run), loop), ranks, DEALT_OUT)
