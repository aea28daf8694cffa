"""The lines by which a function of the user's gives its result."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    calls_in,
    own_nodes,
)
from distdoctor.model.events import Place

_MOST_RETURNS = 3


def returns_of(program: Program, place: Place) -> list[Place]:
    """The return statements of the function that begins at a line.

    Empty if none begins there, or if it has so many that they say little.

    Args:
        program: The user's files.
        place: The line of a `def`.

    Returns:
        The lines, ascending.
    """
    found = [
        function
        for function in program.functions
        if function.file == place.file and _begins_at(function, place.line)
    ]
    if len(found) != 1:
        return []
    lines = sorted(
        node.lineno
        for node in own_nodes(found[0].node)
        if isinstance(node, ast.Return) and node.value is not None
    )
    if len(lines) > _MOST_RETURNS:
        return []
    return [Place(place.file, line, found[0].name) for line in lines]


def returned_at(program: Program, place: Place) -> list[Place]:
    """The return statements of the one function of the user's that a line calls.

    Empty if it calls none, or several, or one with many ways to return.

    Args:
        program: The user's files.
        place: The line of a call.

    Returns:
        The lines, ascending.
    """
    scope = program.at(place.file, place.line)
    names = {
        called(node)
        for node in ([] if scope is None else calls_in(scope))
        if node.lineno <= place.line <= (node.end_lineno or node.lineno)
    }
    found = [function for name in names for function in program.named(name)]
    if len(found) != 1:
        return []
    begins = getattr(found[0].node, "lineno", 0)
    return returns_of(program, Place(found[0].file, begins, found[0].name))


def _begins_at(function: Function, line: int) -> bool:
    node = function.node
    if isinstance(node, ast.Module):
        return False
    # Code objects begin at the first decorator.
    return line in {node.lineno, *(each.lineno for each in node.decorator_list)}
