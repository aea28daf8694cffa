"""Lines that lead to those a finding points at.

What is made in a helper, or by a method that is called too late, is at fault where it
is called: there it can be moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distdoctor.analysis.communication.branches import program_of
from distdoctor.analysis.source.chains import led_by
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run


def with_callers(run: Run, locations: Sequence[Location]) -> tuple[Location, ...]:
    """The same locations, and behind them the calls that the source has to each.

    Args:
        run: With the text of the source.
        locations: Of a finding.
    """
    program = program_of(run)
    known = {(one.place.file, one.place.line) for one in locations}
    found: list[Location] = []
    for one in locations:
        for caller in led_by(program, one.place):
            here = (caller.file, caller.line)
            if here not in known:
                known.add(here)
                told = replace(one, place=caller, role=Role.PARTY)
                found.append(replace(told, remark="leads there"))
    return (*locations, *found)
