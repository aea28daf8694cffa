"""Where the source chooses, by a condition, which of many a call is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.program import Function, Program, calls_in
from distdoctor.model.events import Place

_MOST_STEPS = 200  # from a value to those that it is made of


def choosing(program: Program, place: Place) -> Place | None:
    """The comprehension whose condition chooses what the calls at a line are given.

    Followed are all values that an argument is made of: through variables, attributes
    of `self`, loops and parameters of the user's functions. None if several
    comprehensions choose among them, or none does. That something is there, or asks for
    a gradient, chooses nothing.

    Args:
        program: The user's files.
        place: The line of the calls.

    Returns:
        The comprehension's line, or None.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return None
    waiting: list[tuple[Function, ast.expr]] = [
        (function, argument)
        for call in calls_in(function)
        if call.lineno <= place.line <= (call.end_lineno or 0)
        for argument in call.args
    ]
    known: set[int] = set()
    found: set[Place] = set()
    for scope, value in waiting:
        if id(value) in known or len(known) > _MOST_STEPS:
            continue
        known.add(id(value))
        chosen = [
            Place(scope.file, part.lineno, scope.name)
            for part in ast.walk(value)
            if isinstance(part, ast.expr) and _chooses(part)
        ]
        found.update(chosen[:1])
        if not chosen:
            waiting += _before(program, scope, value)
    return found.pop() if len(found) == 1 else None


def _chooses(node: ast.expr) -> bool:
    comprehensions = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    return isinstance(node, comprehensions) and any(
        not _is_presence(test) for one in node.generators for test in one.ifs
    )


def _is_presence(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case ast.Attribute(attr="requires_grad"):
            return True
        case ast.BoolOp(values=values):
            return all(map(_is_presence, values))
    return False


def _before(
    program: Program, scope: Function, value: ast.expr
) -> Iterator[tuple[Function, ast.expr]]:
    """What the names in an expression stand for, wherever it was given to them."""
    for part in ast.walk(value):
        match part:
            case ast.Name(id=name):
                for use in program.assigned.get((scope, name), ()):
                    yield use.function, use.node
                yield from ((scope, one) for one in _looped(scope, name))
                yield from _given(program, scope, name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                for use in program.stored.get(name, ()):
                    if use.function.file == scope.file:
                        yield use.function, use.node


def _looped(scope: Function, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(scope.node):
        if isinstance(node, ast.For) and any(
            isinstance(part, ast.Name) and part.id == name
            for part in ast.walk(node.target)
        ):
            yield node.iter


def _given(
    program: Program, scope: Function, name: str
) -> Iterator[tuple[Function, ast.expr]]:
    """What callers give a parameter by its place."""
    if name == "self" or name not in scope.parameters:
        return
    at = scope.parameters.index(name) - scope.is_method
    called = scope.simple_name
    if called == "__init__":
        called = scope.name.split(".")[-2]
    for use in program.calls.get(called, ()):
        if isinstance(use.node, ast.Call) and 0 <= at < len(use.node.args):
            yield use.function, use.node.args[at]
