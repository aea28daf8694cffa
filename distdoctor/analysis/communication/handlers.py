"""Handlers in the user's source through which a round of a loop gets around a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from distdoctor.model.events import Place
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Handler:
    """An `except` that lets the program go on."""

    place: Place
    catches: str  # as it stands in the source; "" for a bare one
    last_line: int
    around: Place  # the line within the `try` that leads to the call


def handler_around(run: Run, stack: Sequence[Place]) -> Handler | None:
    """The handler that is the only way around a call.

    Args:
        run: Holds the sources.
        stack: The line of the call, and those of its callers as far as known,
            innermost first.

    Returns:
        None if there is no such handler, or a condition, a `continue` or a way out of
        the loop would explain a missing call as well.
    """
    for place in stack:
        text = run.sources.get(place.file)
        if text is None:
            return None
        found = _around(text, place)
        if isinstance(found, Handler):
            return found
        if found is _OTHERWISE:
            return None
    return None


def callers(run: Run, place: Place) -> Iterator[Place]:
    """Lines of the same file that call the function a line is in, by its name."""
    text = run.sources.get(place.file)
    tree = None if text is None else _parsed(text)
    if tree is None:
        return
    owner, _, name = place.function.rpartition(".")
    lines = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _name(node.func, method=bool(owner) and not owner.endswith("<locals>"))
        == name
    }
    for line in sorted(lines):
        functions = [
            node.name
            for node, _ in _path(tree, line)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        yield Place(place.file, line, functions[-1] if functions else "<module>")


_OTHERWISE = object()
"""Something else is a way around the call too."""


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _name(called: ast.expr, method: bool) -> str:
    if method:
        return called.attr if isinstance(called, ast.Attribute) else ""
    return called.id if isinstance(called, ast.Name) else ""


def _around(text: str, place: Place) -> object:
    """A handler, `_OTHERWISE`, or None if this function has no way around the line."""
    tree = _parsed(text)
    path = None if tree is None else _path(tree, place.line)
    if not path:
        return None
    for n, (node, part) in reversed(list(enumerate(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        if isinstance(node, ast.If | ast.Match | ast.ExceptHandler):
            return _OTHERWISE
        if isinstance(node, ast.Try) and part == "body":
            swallowing = [h for h in node.handlers if _goes_on(h)]
            if swallowing:
                return _alone(path[:n], swallowing, place)
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            before = [
                handler
                for other in ast.walk(node)
                if isinstance(other, ast.Try) and _last(other) < place.line
                for handler in other.handlers
                if any(isinstance(inner, ast.Continue) for inner in ast.walk(handler))
            ]
            if before:
                return _alone(path[: n + 1], before, place)
    return None


def _alone(
    outer: Sequence[tuple[ast.AST, str]],
    handlers: Sequence[ast.ExceptHandler],
    place: Place,
) -> object:
    """The first of the handlers, if the loop around has no other way to cut a round."""
    loops = [
        node
        for node, _ in outer
        if isinstance(node, ast.For | ast.While | ast.AsyncFor)
    ]
    spans = [(handler.lineno, _last(handler)) for handler in handlers]
    jumps = [
        node.lineno
        for loop in loops[-1:]
        for node in ast.walk(loop)
        if isinstance(node, ast.Continue | ast.Break | ast.Return)
    ]
    if any(not any(a <= line <= b for a, b in spans) for line in jumps):
        return _OTHERWISE
    first = handlers[0]
    return Handler(
        Place(place.file, first.lineno, place.function),
        "" if first.type is None else ast.unparse(first.type),
        _last(first),
        place,
    )


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the program stays in its loop behind this handler."""
    return not any(
        isinstance(statement, ast.Raise | ast.Break | ast.Return)
        for statement in handler.body
    )


def _path(tree: ast.AST, line: int) -> list[tuple[ast.AST, str]]:
    """Compound statements around a line, outermost first, each with the part it is in.

    A condition counts for its branches, not for its own test.
    """
    path: list[tuple[ast.AST, str]] = []
    node = tree
    while True:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            parts = getattr(node, name, ())
            inside = [
                child
                for child in (parts if isinstance(parts, list) else ())
                if _first(child) <= line <= _last(child)
            ]
            if inside:
                path.append((node, name))
                node = inside[0]
                break
        else:
            return path


def _first(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    return int(getattr(node, "lineno", 0))


def _last(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return _last(node.body[-1])
    return int(getattr(node, "end_lineno", None) or _first(node))
