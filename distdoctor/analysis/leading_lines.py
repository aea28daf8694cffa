"""Lines that lead to those a finding points at.

What is made in a helper, or by a method that is called too late, is at fault where it
is called: there it can be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.call_chains import chains_to, led_by, next_callers
from distdoctor.analysis.source.program import Program
from distdoctor.model.events import Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run


def with_callers(run: Run, locations: Sequence[Location]) -> tuple[Location, ...]:
    """The same locations, and behind them the calls that the source has to each.

    Args:
        run: With the text of the source.
        locations: Of a finding.

    Returns:
        The locations, and the calls with the same ranks, as parties.
    """
    return _with(run, locations, led_by)


def with_all_callers(run: Run, locations: Sequence[Location]) -> tuple[Location, ...]:
    """The same, where a helper may be called from a few lines, one of them at fault.

    Args:
        run: The run that is judged.
        locations: What a finding points at.

    Returns:
        The locations, and behind them the lines that call the helpers they are in.
    """
    return _with(run, locations, _few)


def _few(program: Program, place: Place) -> list[Place]:
    callers = next_callers(chains_to(program, place))
    return callers if len(callers) <= _MOST_CALLERS else []


_MOST_CALLERS = 3  # with more of them a list says nothing


def _with(
    run: Run,
    locations: Sequence[Location],
    leading: Callable[[Program, Place], list[Place]],
) -> tuple[Location, ...]:
    program = program_of(run)
    known = {(one.place.file, one.place.line) for one in locations}
    found: list[Location] = []
    for one in locations:
        for caller in leading(program, one.place):
            here = (caller.file, caller.line)
            if here not in known:
                known.add(here)
                location = replace(one, place=caller, role=Role.PARTY)
                found.append(replace(location, remark="leads there"))
    return (*locations, *found)
