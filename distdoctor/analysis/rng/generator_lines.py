"""Lines of the source that make a random generator which the user's loop holds."""

from __future__ import annotations

import ast

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_MOST = 3  # with more of them a list says nothing


def making_lines(run: Run, name: str) -> list[Place]:
    """Where a variable or attribute is given a generator of torch's.

    Args:
        run: Holds the sources.
        name: As the loop's function has it, such as "noise.generator".

    Returns:
        The lines, maybe none.
    """
    last = name.rpartition(".")[2]
    program = program_of(run)
    uses = [*program.stored.get(last, ())]
    uses += [
        use
        for (_, variable), assigned in program.assigned.items()
        if variable == last
        for use in assigned
    ]
    found = dict.fromkeys(
        Place(use.function.file, use.line, use.function.name)
        for use in uses
        if "Generator(" in ast.unparse(use.node)
    )
    return [*found] if len(found) <= _MOST else []
