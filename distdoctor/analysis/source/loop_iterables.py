"""What gives a loop its items: the user's generators, and his classes' `__iter__`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.program import Function, Program, called, own_nodes
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.analysis.source.value_search import GIVING
from distdoctor.analysis.source.value_spots import Scene, Spot
from distdoctor.model.events import Place

_AROUND = frozenset(
    {
        "enumerate",
        "zip",
        "iter",
        "islice",
        "list",
        "tuple",
        "reversed",
        "tqdm",
        "trange",
    }
)
"""Functions that give the items of their first argument, or as many."""

_MOST = 3

_DEEPEST = 3


def givers(program: Program, head: Place, rank: int, size: int) -> list[Place]:
    """Lines of the user's functions by which a `for` loop gets its items.

    Args:
        program: The user's files.
        head: The line of the loop's head.
        rank: As which rank the source is read.
        size: Number of ranks.

    Returns:
        The lines, each once; empty if no function of the user's is known to give them.
    """
    function = program.at(head.file, head.line)
    if function is None:
        return []
    ways = ValueFlow(program, rank, size)
    found: dict[Place, None] = {}
    for node in own_nodes(function.node):
        if isinstance(node, ast.For | ast.AsyncFor) and node.lineno == head.line:
            spot = Spot(node.iter, Scene(function))
            found |= dict.fromkeys(_of(program, ways, spot, _DEEPEST))
    return list(found)[:_MOST]


def _of(program: Program, ways: ValueFlow, spot: Spot, depth: int) -> Iterator[Place]:
    end = ways.end(spot)
    call = end.node
    if not isinstance(call, ast.Call) or not depth:
        return
    name = called(call)
    if name in _AROUND and call.args:
        yield from _of(program, ways, Spot(call.args[0], end.scene), depth - 1)
        return
    owner = Classes(program).named(name)
    inner = owner.method("__iter__") if owner is not None else None
    functions = program.named(name) if owner is None else [inner] if inner else []
    if len(functions) != 1:
        if end.place != spot.place:
            yield end.place  # what a function of the user's has returned
        return
    for value in _given(functions[0]):
        following = [*_of(program, ways, Spot(value, Scene(functions[0])), depth - 1)]
        yield from following
        yield Place(functions[0].file, value.lineno, functions[0].name)


def _given(function: Function) -> Iterator[ast.expr]:
    for node in own_nodes(function.node):
        if isinstance(node, GIVING) and node.value is not None:
            yield node.value
