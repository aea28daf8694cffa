"""The lines by which a function of the user's gives its result."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.program import Function, Program, own_nodes
from distdoctor.model.events import Place

_MOST_RETURNS = 3


def returns_of(program: Program, place: Place) -> list[Place]:
    """The return statements of the function that begins at a line.

    Empty if none begins there, or if it has so many that they say little.
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


def _begins_at(function: Function, line: int) -> bool:
    node = function.node
    if isinstance(node, ast.Module):
        return False
    # Code objects begin at the first decorator.
    return line in {node.lineno, *(each.lineno for each in node.decorator_list)}
