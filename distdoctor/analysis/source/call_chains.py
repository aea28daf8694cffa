"""By which callers a program comes to a line, as far as the source alone tells."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from distdoctor.analysis.source.program import MODULE, Function, Program, called
from distdoctor.model.events import Place

_DEEPEST = 12  # callers of callers
_MOST = 16  # chains


def chains_to(program: Program, place: Place) -> list[tuple[Place, ...]]:
    """Chains of lines, outermost caller first, that end at a line.

    A function that nobody calls by its name begins a chain; recursion is cut.

    Args:
        program: The user's files.
        place: The line that the chains end at.

    Returns:
        At most a few; the line alone if it is in no known file.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return [(place,)]
    found = islice(_up(program, function, (place,)), _MOST)
    return list(found)


def functions_to(program: Program, function: Function) -> list[Function]:
    """A function, and all from which the source may lead to it, each once.

    Args:
        program: The user's files.
        function: A function of the program.

    Returns:
        The function first, then its callers, and theirs.
    """
    found = {id(function): function}
    waiting = [function]
    for one in waiting:
        for caller, _ in _callers(program, one):
            if id(caller) not in found:
                found[id(caller)] = caller
                waiting.append(caller)
    return list(found.values())


def _up(
    program: Program, function: Function, below: tuple[Place, ...]
) -> Iterator[tuple[Place, ...]]:
    if function.name == MODULE or len(below) >= _DEEPEST:
        yield below
        return
    begun = False
    for caller, line in _callers(program, function):
        here = Place(caller.file, line, caller.name)
        if here not in below:
            begun = True
            yield from _up(program, caller, (here, *below))
    if not begun:
        yield below


def _callers(program: Program, function: Function) -> list[tuple[Function, int]]:
    name = function.simple_name
    if name == "__init__":
        name = function.name.split(".")[-2]
    if is_property(function):
        return []
    found = [(use.function, use.line) for use in program.applied(function)]
    for use in program.calls.get(name, []):
        assert isinstance(use.node, ast.Call)
        if program.is_library(use.node, use.function):
            continue
        by_attribute = isinstance(use.node.func, ast.Attribute)
        if by_attribute or not function.is_method or name != function.simple_name:
            found.append((use.function, use.line))
    if not found and name in {"forward", "__call__"}:
        return []
    return found


def is_property(function: Function) -> bool:
    """Whether a method is read as an attribute.

    Args:
        function: A function of the program.

    Returns:
        Whether a decorator is just `property`.
    """
    decorators = getattr(function.node, "decorator_list", [])
    return any(
        isinstance(node, ast.Name) and node.id == "property" for node in decorators
    )


def next_callers(chains: Iterable[Sequence[Place]]) -> list[Place]:
    """Lines by which chains come to the function they end in, each line once.

    Args:
        chains: As of `chains_to`.

    Returns:
        The lines, in the order of the chains.
    """
    return [*dict.fromkeys(chain[-2] for chain in chains if len(chain) > 1)]


def led_by(program: Program, place: Place) -> list[Place]:
    """The lines that call the function a line is in, and their callers, nearest first.

    As far as the source has one way there; what calls `main`, or is in no function, is
    no pointer.

    Args:
        program: The user's files.
        place: A line of the source.

    Returns:
        The lines, empty where there are several ways.
    """
    chains = chains_to(program, place)
    found: list[Place] = []
    for depth in range(2, _MOST_LED + 2):
        callers = {chain[-depth] if len(chain) >= depth else None for chain in chains}
        caller = callers.pop()
        function = None if caller is None else program.at(caller.file, caller.line)
        if callers or caller is None or function is None or function.name == MODULE:
            break
        found.append(caller)
    return found


_MOST_LED = 2


def call_between(program: Program, caller: Place, callee: Function) -> ast.Call | None:
    """The call on a line by which a function is come to; None if it is not plain.

    Args:
        program: The user's files.
        caller: The line of the call.
        callee: The function that is come to.

    Returns:
        The call, or None if there are several on the line, or none by that name.
    """
    function = program.at(caller.file, caller.line)
    if function is None:
        return None
    names = {callee.simple_name}
    if callee.simple_name == "__init__":
        names = {callee.name.split(".")[-2]}
    calls = [
        use.node
        for name in names
        for use in program.calls.get(name, [])
        if use.function is function
        and use.node.lineno <= caller.line <= (use.node.end_lineno or 0)
    ]
    only = calls[0] if len(calls) == 1 else None
    return only if isinstance(only, ast.Call) and called(only) else None
