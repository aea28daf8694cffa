"""Lines of the user's source that are to do something, by how they read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from operator import attrgetter

from distdoctor.model.events import Place
from distdoctor.model.observed.protocol import CLEAR, DROP, Act
from distdoctor.model.run import Run

_CLEARING = frozenset({"zero_grad", "zero_", "_foreach_zero_", "zero_gradients"})

_MOST = 4


def clearing_in_vain(run: Run) -> list[Place]:
    """Lines that read as if they cleared gradients, and were never seen to do so."""
    seen = {
        (act.place.file, act.place.line)
        for rank in run.seen
        for act in run.of(Act, rank)
        if act.word in {CLEAR, DROP} and act.place is not None
    }
    found = [
        place
        for place, node in _nodes(run)
        if _is_clearing(node) and (place.file, place.line) not in seen
    ]
    return sorted(found, key=attrgetter("file", "line"))[:_MOST]


def assigning(run: Run, attribute: str) -> list[Place]:
    """Lines that put something into an attribute of that name."""
    found = [
        place
        for place, node in _nodes(run)
        if isinstance(node, ast.Assign) and _has(node.targets[0], attribute)
    ]
    return sorted(found, key=attrgetter("file", "line"))[:_MOST]


def _nodes(run: Run) -> Iterator[tuple[Place, ast.stmt | ast.Call]]:
    for file, text in run.sources.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # not Python, or not of this release
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.Call):
                yield Place(file, node.lineno), node


def _is_clearing(node: ast.stmt | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _CLEARING
    if not isinstance(node, ast.Assign) or not _has(node.targets[0], "grad"):
        return False
    return isinstance(node.value, ast.Constant) and node.value.value is None


def _has(target: ast.expr, attribute: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == attribute
