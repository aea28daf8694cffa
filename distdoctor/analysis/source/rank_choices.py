"""Where a program chooses by the rank what is done, of what stands at one line."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.conditions import ConditionKind, conditions
from distdoctor.analysis.source.program import Function, Program, own_nodes
from distdoctor.analysis.source.rank_variation import Nature, nature_of
from distdoctor.analysis.source.value_search import ValueSearch
from distdoctor.model.events import Place


def gone_through(program: Program, place: Place) -> list[Place]:
    """Loops that give a call its order: that around it, and those of its generators.

    Args:
        program: The user's files.
        place: The line of the call.

    Returns:
        The lines, each once.
    """
    function = program.at(place.file, place.line)
    loops = [] if function is None else _loops(function, place.line)
    if function is None or not loops:
        return []
    innermost = loops[-1]

    def is_sought(value: ast.expr, inside: Function, line: int) -> bool:
        return value is not innermost.iter and any(
            loop.iter is value for loop in _loops(inside, line, at_head=True)
        )

    search = ValueSearch(program, is_sought=is_sought, through_loops=True)
    search.add(innermost.iter, function, innermost.lineno)
    here = Place(function.file, innermost.lineno, function.name)
    return [*search.places(), here]


def _loops(
    function: Function, line: int, *, at_head: bool = False
) -> list[ast.For | ast.AsyncFor]:
    """The loops of a function around a line, or with their heads there."""
    return [
        node
        for node in own_nodes(function.node)
        if isinstance(node, ast.For | ast.AsyncFor)
        and (
            node.lineno == line
            if at_head
            else node.body[0].lineno <= line <= (node.end_lineno or node.lineno)
        )
    ]


def chosen_by_rank(program: Program, place: Place) -> list[Place]:
    """Lines that make what the tests above a line ask for, each on some ranks only.

    `for axis in plan: if axis is ROW: …`, where a function gives even ranks one plan
    and odd ones another: the lines of the plans. A test that itself asks for the rank
    needs no such lines.

    Args:
        program: The user's files.
        place: A line under a test.

    Returns:
        The lines, each once.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return []

    def is_sought(_value: ast.expr, inside: Function, line: int) -> bool:
        return any(
            nature_of(program, condition) is Nature.LOCAL
            for condition in conditions(inside, line)
            if condition.kind in {ConditionKind.BRANCH, ConditionKind.LEAVING}
        )

    search = ValueSearch(program, is_sought=is_sought, through_loops=True)
    for condition in conditions(function, place.line):
        if condition.kind is ConditionKind.BRANCH:
            for test, _ in condition.tests:
                search.add(test, condition.function, condition.line)
    return search.places()
