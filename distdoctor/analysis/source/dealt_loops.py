"""Where a program deals out what it goes through among its ranks."""

from __future__ import annotations

import ast
from collections.abc import Set
from dataclasses import dataclass

from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import Function, Program, called, own_nodes
from distdoctor.analysis.source.value_search import RANKS, ValueSearch, is_rank
from distdoctor.model.events import Place

_PARTS = frozenset({"range", "islice", "arange"})
"""Functions that take a part of what is there by where it begins and its stride."""


def shares(program: Program, place: Place) -> list[Place]:
    """Lines by which what a loop goes through is dealt out among ranks.

    A part is taken by the rank: `docs[rank::world]`, `range(rank, n, world)`, or each
    item in its turn: `if i % world == rank`.

    Args:
        program: The user's files.
        place: The loop's first line.

    Returns:
        The lines, each once; empty if nothing is dealt out, or nobody knows.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return []
    own = {
        name
        for (_, name), uses in program.assigned.items()
        if any(is_rank(use.node) for use in uses)
    }
    reader = _Reader(RANKS | own)
    search = ValueSearch(program, is_sought=reader.is_share, through_loops=True)
    for node in own_nodes(function.node):
        if isinstance(node, ast.For | ast.AsyncFor) and node.lineno == place.line:
            search.add(node.iter, function, node.lineno)
    return search.places()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads expressions of a program.

    Attributes:
        ranks: Names of functions, variables and attributes that are the rank there.
    """

    ranks: Set[str]

    def is_share(self, value: ast.expr, function: Function, line: int) -> bool:
        """Whether a part is taken by the rank, or an item in the rank's turn."""
        turns = (test for one in conditions(function, line) for test, _ in one.tests)
        if any(map(self._is_turn, turns)):
            return True
        for part in ast.walk(value):
            match part:
                case ast.Compare() if self._is_turn(part):
                    return True
                case ast.Subscript(slice=index) if self._has_rank(index):
                    return True
                case ast.Call(args=given) if called(part) in _PARTS:
                    if any(map(self._has_rank, given)):
                        return True
        return False

    def _is_turn(self, test: ast.expr) -> bool:
        """Whether it is asked if a number is the rank's: `i % world == rank`."""
        if not isinstance(test, ast.Compare):
            return False
        sides = [test.left, *test.comparators]
        counted = any(
            isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) for one in sides
        )
        return counted and any(map(self._has_rank, sides))

    def _has_rank(self, value: ast.expr) -> bool:
        for part in ast.walk(value):
            match part:
                case ast.Call() if called(part) in self.ranks:
                    return True
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    if name in self.ranks:
                        return True
        return False
