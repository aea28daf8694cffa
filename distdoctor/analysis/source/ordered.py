"""Where a program chooses by the rank what is done, of what stands at one line."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.backward import Search
from distdoctor.analysis.source.conditions import Kind, conditions
from distdoctor.analysis.source.program import Function, Program
from distdoctor.analysis.source.variation import Nature, nature_of
from distdoctor.model.events import Place


def chosen_by_rank(program: Program, place: Place) -> list[Place]:
    """Lines that make what the tests above a line ask for, each on some ranks only.

    `for axis in plan: if axis is ROW: …`, where a function gives even ranks one plan
    and odd ones another: the lines of the plans. A test that itself asks for the rank
    needs no such lines.

    Args:
        program: The user's files.
        place: A line under a test.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return []

    def is_sought(_value: ast.expr, inside: Function, line: int) -> bool:
        return any(
            nature_of(program, condition) is Nature.LOCAL
            for condition in conditions(inside, line)
            if condition.kind in {Kind.BRANCH, Kind.LEAVING}
        )

    search = Search(program, is_sought=is_sought, through_loops=True)
    for condition in conditions(function, place.line):
        if condition.kind is Kind.BRANCH:
            for test, _ in condition.tests:
                search.add(test, condition.function, condition.line)
    return search.places()
