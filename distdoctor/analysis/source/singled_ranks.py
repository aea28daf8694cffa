"""Ranks that the source gives a value of their own, where those of a run are a tie.

Of two ranks neither is usual. A program that is read as a larger job's would be tells:
what `2 if rank == 1 else 1` gives to one of eight ranks is that rank's own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Hashable, Sequence

from distdoctor.analysis.source.guards import guards
from distdoctor.analysis.source.program import Function, Program
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Place

_MANY = 8  # ranks of the larger job


def by_expression(program: Program, asked: ast.expr, function: Function) -> set[int]:
    """Ranks for which a part of an expression is not what it is for most.

    Args:
        program: The user's files.
        asked: The expression.
        function: Where it stands.

    Returns:
        Empty if the source tells none.
    """
    readers = [RankReader(program, rank, _MANY) for rank in range(_MANY)]
    for part in ast.walk(asked):
        if not isinstance(part, ast.expr):
            continue
        values = [reader.value(part, function) for reader in readers]
        if not all(one.is_known and one.ranked for one in values):
            continue
        known = [repr(one.value) for one in values]
        if len(set(known)) > 1:
            return _few(known)
    return set()


def by_argument(program: Program, place: Place, name: str, position: int) -> set[int]:
    """Ranks for which an argument of a call is not what it is for most.

    Args:
        program: The user's files.
        place: The line of the call.
        name: The argument's keyword.
        position: Its position; -1: it has none.

    Returns:
        Empty if the source tells none.
    """
    gone = [
        ValueFlow(program, rank, _MANY).argument(place, name, position)
        for rank in range(_MANY)
    ]
    # A way that nobody can follow is unlike one that has an end.
    keys = [None if way is None else way.end.key for way in gone]
    if len(set(keys)) > 1:
        return _few(keys)
    if gone[0] is None:
        return set()
    end = gone[0].end
    return by_expression(program, end.node, end.scene.function)


def by_guards(program: Program, place: Place) -> set[int]:
    """Ranks that alone come to a line, or alone do not.

    Args:
        program: The user's files.
        place: The line.

    Returns:
        Empty if the source tells none.
    """
    held = [
        one
        for chain in guards(program, place)
        for guard in chain
        for one in guard.conditions
    ]
    readers = [RankReader(program, rank, _MANY) for rank in range(_MANY)]
    for condition in held:
        found = [reader.holds(condition) for reader in readers]
        if all(one.is_known and one.ranked for one in found):
            few = _few([bool(one.truth) for one in found])
            if few:
                return few
    return set()


def _few(values: Sequence[Hashable]) -> set[int]:
    usual, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return set()
    return {rank for rank, one in enumerate(values) if one != usual}
