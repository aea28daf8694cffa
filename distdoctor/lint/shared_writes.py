"""Files that every rank writes under one name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.lint.call_graph import CallGraph
from distdoctor.lint.code_base import Scope
from distdoctor.lint.oracle import Oracle
from distdoctor.lint.rank_values import SIZE
from distdoctor.lint.rank_walk import RankWalk
from distdoctor.lint.rank_words import is_of_rank
from distdoctor.lint.walked_steps import CodeSpot, TooLong


@dataclass(frozen=True, slots=True)
class SharedWrite:
    """A call that writes a file, on all ranks.

    Attributes:
        spot: The call.
        callers: The calls that led to it, outermost first.
        entry: The file's own lines that the program begins with.
    """

    spot: CodeSpot
    callers: tuple[CodeSpot, ...]
    entry: Scope


def shared_writes(graph: CallGraph) -> Iterator[SharedWrite]:
    """The writes that every rank comes to, from the first line of a program.

    Where a function is only called from elsewhere, the guard may stand there.
    """
    seen: set[int] = set()
    for file in graph.code.files:
        entry = file.module
        if entry not in graph.telling or not _is_program(entry, graph):
            continue
        oracle = Oracle()
        walks = [RankWalk(graph, rank, oracle) for rank in (0, SIZE - 1)]
        try:
            for walk in walks:
                walk.go(entry)
        except (TooLong, RecursionError):
            continue
        first, last = walks
        others = {spot.key for spot, _ in last.writes}
        for spot, callers in first.writes:
            if spot.key in others and spot.key not in seen:
                seen.add(spot.key)
                if not _is_ranked(spot, callers):
                    yield SharedWrite(spot, callers, entry)


def _is_program(entry: Scope, graph: CallGraph) -> bool:
    """Whether a file is run by each rank, and not only imported.

    It says so, or its own lines start the process group; who starts processes that do
    that is no rank.
    """
    if "__main__" in entry.words:
        return entry in graph.starting or not _SPAWNS.search(entry.source.text)
    return entry in graph.starting and not graph.code.is_imported(entry.source)


_SPAWNS = re.compile(r"\bspawn\(|\bstart_processes\(|\bProcess\(")


def _is_ranked(spot: CodeSpot, callers: tuple[CodeSpot, ...]) -> bool:
    """Whether the file's name may rest on the rank, as far as names tell."""
    call = spot.node
    assert isinstance(call, ast.Call)
    path = call.args[1:2] or [
        one.value for one in call.keywords if one.arg in {"f", None}
    ]
    if not path:
        return True
    scopes = [spot.scope, *(caller.scope for caller in callers)]
    given = [
        part
        for caller in callers
        if isinstance(caller.node, ast.Call)
        for part in (*caller.node.args, *(k.value for k in caller.node.keywords))
    ]
    names = {*_words(path[0])}
    parameters = {*spot.scope.parameters} & names
    if parameters and any(is_of_rank(word) for part in given for word in _words(part)):
        return True
    for _ in range(4):
        if any(is_of_rank(word) or "rank" in word.lower() for word in names):
            return True
        more = {
            word
            for scope in scopes
            for node in ast.walk(scope.node)
            for target, value in _given(node)
            if names & {*_words(target)}
            for word in _words(value)
        }
        if more <= names:
            return False
        names |= more
    return any(is_of_rank(word) for word in names)


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a statement gives names to, and what they then stand for."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AugAssign(target=target, value=value):
            yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield target, value


def _words(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
