"""What decides whether a line is come to: its own conditions, and its callers'.

A decorator decides as well: `@rank_zero_only` calls the function on one rank, under a
test that stands in a function of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.source.call_chains import chains_to
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import (
    Function,
    Program,
    all_parameters,
    called,
    calls_in,
)
from distdoctor.model.events import Place

_FIRST_ALONE = frozenset(
    {"rank_zero_only", "rank_zero_first", "master_only"}
    | {"on_main_process", "on_local_main_process"}
)
"""Decorators of libraries that run a function on the first rank.

Source: lightning_utilities/core/rank_zero.py, mmengine/dist/utils.py,
accelerate/accelerator.py.
"""


@dataclass(frozen=True, slots=True)
class Guard:
    """A line, or a decorator, and what must hold for it to let a rank through."""

    place: Place
    conditions: tuple[Condition, ...]


def guards(program: Program, place: Place) -> Iterator[tuple[Guard, ...]]:
    """For each chain of callers to a line, its guards, the innermost first.

    Args:
        program: The user's files.
        place: The line.

    Yields:
        The guards of one chain.
    """
    for chain in chains_to(program, place):
        yield tuple(
            guard for here in reversed(chain) for guard in _guards_at(program, here)
        )


def _guards_at(program: Program, here: Place) -> Iterator[Guard]:
    function = program.at(here.file, here.line)
    if function is not None:
        yield Guard(here, conditions(function, here.line))
        for node in getattr(function.node, "decorator_list", ()):
            at = Place(function.file, node.lineno, function.name)
            yield from (Guard(at, held) for held in _within(program, function, node))


def _within(
    program: Program, function: Function, decorator: ast.expr
) -> Iterator[tuple[Condition, ...]]:
    """Conditions under which a decorator calls what it decorates."""
    call = decorator if isinstance(decorator, ast.Call) else None
    name = called(call or ast.Call(func=decorator, args=[], keywords=[]))
    makers = program.named(name)
    if not makers and name in _FIRST_ALONE:
        test = ast.parse("get_rank() == 0", mode="eval").body
        held = Condition(
            ConditionKind.BRANCH, function, decorator.lineno, ((test, True),)
        )
        yield (held,)
    for inner in program.functions:
        given = _given_around(inner, makers)
        for one in calls_in(inner) if given else ():
            if isinstance(one.func, ast.Name) and one.func.id in given:
                yield conditions(inner, one.lineno)


def _given_around(inner: Function, makers: list[Function]) -> set[str]:
    """Parameters of the functions around one, if one of them is asked for."""
    given: set[str] = set()
    outer = inner.outer
    while outer is not None:
        given |= all_parameters(outer)
        if outer in makers:
            return given
        outer = outer.outer
    return set()
