"""Lines that decide whether DDP is told not to average."""

from __future__ import annotations

import ast

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import Function, called, own_nodes
from distdoctor.analysis.source.value_search import ValueSearch
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_TOLD = "no_sync"

_MOST = 4  # lines


def deciding(run: Run, place: Place) -> list[Place]:
    """The comparisons by which a line calls `no_sync`, or does not.

    From the tests around the call back to what makes them, through variables,
    parameters, and functions of the user's; and lines of other functions on the way.

    Args:
        run: With the text of the source.
        place: The line that calls it.

    Returns:
        A few lines, each once.
    """
    program = program_of(run)
    function = program.at(place.file, place.line)
    if function is None:
        return []
    search = ValueSearch(program, is_sought=_decides)
    for condition in conditions(function, place.line):
        for test, _ in condition.tests:
            search.add(test, condition.function, test.lineno)
    for test in _choices(function, place.line):
        search.add(test, function, test.lineno)
    found = search.places()
    asked = [one for one in search.gone() if one.function != function.name]
    return [*dict.fromkeys([*found, *asked])][:_MOST]


def _choices(function: Function, line: int) -> list[ast.expr]:
    """Tests of `nullcontext() if test else model.no_sync()` on a line."""
    return [
        node.test
        for node in own_nodes(function.node)
        if isinstance(node, ast.IfExp)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and any(
            isinstance(part, ast.Call) and called(part) == _TOLD
            for part in ast.walk(node)
        )
    ]


def _decides(value: ast.expr, function: Function, line: int) -> bool:
    """Whether a value is a comparison, or an answer that a branch gives."""
    if any(isinstance(part, ast.Compare) for part in ast.walk(value)):
        return True
    answer = isinstance(value, ast.Constant) and isinstance(value.value, bool)
    return answer and bool(conditions(function, line))
