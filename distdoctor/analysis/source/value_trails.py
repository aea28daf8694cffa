"""Lines that a value comes along: by the one way there is, else by names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    calls_in,
    names_called,
    own_nodes,
)
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.analysis.source.value_search import ValueSearch
from distdoctor.analysis.source.value_spots import Scene, Spot
from distdoctor.model.events import Place

_MOST = 4
"""Lines of a way; more of them are no pointer."""

_LONGEST = 24

_DIVIDING = frozenset({"div", "div_", "true_divide", "divide", "true_divide_"})


def trail(
    program: Program, value: ast.expr, function: Function, rank: int, size: int
) -> list[Place]:
    """Lines along which a value comes to where it is used, without that line.

    Args:
        program: The user's files.
        value: The expression, where it is used.
        function: In which it stands.
        rank: As which rank the source is read.
        size: Number of ranks.

    Returns:
        The nearest first, and the one that it comes from at the end, where the way is
        plain; else some to which the names lead.
    """
    way = ValueFlow(program, rank, size).of(Spot(value, Scene(function)))
    if way is not None:
        lines = way.last(_LONGEST)[::-1]
        return lines if len(lines) <= _MOST else [*lines[: _MOST - 1], lines[-1]]
    search = ValueSearch(program, is_sought=_is_end)
    search.add(value, function, value.lineno)
    ends = search.places()
    passed = dict.fromkeys([*search.gone(), *ends])
    found = [
        place
        for place in passed
        if (place.file, place.line) != (function.file, value.lineno)
    ]
    return found[:_MOST]


def _is_end(value: ast.expr, _function: Function, _line: int) -> bool:
    return isinstance(value, ast.Constant)


def divisors(
    program: Program, place: Place, rank: int, size: int
) -> list[tuple[Place, list[Place]]]:
    """What is divided by something at a line, or else in its function.

    Args:
        program: The user's files.
        place: The line.
        rank: As which rank the source is read.
        size: Number of ranks.

    Returns:
        The lines that divide, each with those along which the divisor comes.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return []
    every = [*divided_by(function)]
    here = [one for one in every if one.lineno <= place.line <= (one.end_lineno or 0)]
    return [
        (
            Place(function.file, one.lineno, function.name),
            trail(program, one, function, rank, size),
        )
        for one in here or every
    ]


def multipliers(program: Program, place: Place, rank: int, size: int) -> list[Place]:
    """Lines along which those numbers come that something is multiplied by at a line.

    Or in what a function of the user's returns that is called there.

    Args:
        program: The user's files.
        place: The line.
        rank: As which rank the source is read.
        size: Number of ranks.

    Returns:
        A few lines, each once.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return []
    found: dict[Place, None] = {}
    called_there = names_called(function, place.line)
    scopes = [one for name in sorted(called_there) for one in program.named(name)]
    for scope in [function, *scopes]:
        for node in own_nodes(scope.node):
            match node:
                case ast.BinOp(op=ast.Mult(), right=value) if (
                    scope is not function or node.lineno == place.line
                ):
                    found |= dict.fromkeys(trail(program, value, scope, rank, size))
    return list(found)[:_MOST]


def divided_by(function: Function) -> Iterator[ast.expr]:
    """What a function divides by: with `/`, `/=`, and methods of tensors.

    Args:
        function: A function of the program.

    Yields:
        The divisors.
    """
    for node in own_nodes(function.node):
        match node:
            case (
                ast.BinOp(op=ast.Div(), right=value)
                | ast.AugAssign(op=ast.Div(), value=value)
            ):
                yield value
    for call in calls_in(function):
        if called(call) in _DIVIDING and len(call.args) == 1:
            yield call.args[0]
