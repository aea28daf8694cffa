"""Handlers in the user's source through which a round of a loop gets around a call."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from distdoctor.analysis.source.syntax_trees import parsed
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


def handler_that_caught(run: Run, line: Place, error: str) -> Place | None:
    """The `except` by which an exception was caught that came through a line.

    Args:
        run: Holds the sources.
        line: Within the `try`, in the function of the handler.
        error: Name of the exception's class.

    Returns:
        That which names the class, else one that may stand for it: a base class is not
        known by its name. None if the line is in no `try`.
    """
    found = _caught_by(run, line, error)
    return None if found is None else replace(line, line=found[1].lineno)


def may_lead_around(run: Run, line: Place, error: str, ways: Collection[Place]) -> bool:
    """Whether a handler that caught an exception may have led around a call.

    Args:
        run: Holds the sources.
        line: As for `handler_that_caught`.
        error: Likewise.
        ways: The lines of the call and of its callers; those in other functions than
            the handler's do not count.

    Returns:
        False if the program went on behind the `try`, and came to the call from there.
    """
    found = _caught_by(run, line, error)
    if found is None:
        return line.file not in run.sources
    node, handler = found
    mine = [
        one for one in ways if (one.file, one.function) == (line.file, line.function)
    ]
    jumps = (ast.Continue, ast.Break, ast.Return)
    if not mine or any(isinstance(part, jumps) for part in ast.walk(handler)):
        return True
    return any(node.lineno <= one.line <= _last(node) for one in mine)


def _caught_by(
    run: Run, line: Place, error: str
) -> tuple[ast.Try, ast.ExceptHandler] | None:
    tree = parsed(run.sources.get(line.file, ""))
    for node, part in reversed(_path(tree, line.line)):
        if isinstance(node, ast.Try) and part == "body" and node.handlers:
            named = [h for h in node.handlers if error in _classes(h)]
            wide = [h for h in node.handlers if not _classes(h) - _WIDE]
            return node, (named or wide or node.handlers)[0]
    return None


def callers(run: Run, place: Place) -> Iterator[Place]:
    """Lines of the same file that call the function a line is in, by its name.

    Args:
        run: The run that is judged.
        place: A line of the user's.

    Yields:
        The lines, ascending; none if the file is not known.
    """
    tree = parsed(run.sources.get(place.file, ""))
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
            node.name for node, _ in _path(tree, line) if isinstance(node, _FUNCTIONS)
        ]
        yield Place(place.file, line, functions[-1] if functions else "<module>")


_WIDE = {"Exception", "BaseException"}


def _classes(handler: ast.ExceptHandler) -> set[str]:
    """What it catches, by the last part of each name; empty: anything."""
    if handler.type is None:
        return set()
    given = handler.type
    parts = given.elts if isinstance(given, ast.Tuple) else [given]
    return {ast.unparse(part).rpartition(".")[2] for part in parts}


_LOOPS = ast.For | ast.While | ast.AsyncFor

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

_OTHERWISE = object()
"""Something else is a way around the call too."""


def _name(called: ast.expr, method: bool) -> str:
    if method:
        return called.attr if isinstance(called, ast.Attribute) else ""
    return called.id if isinstance(called, ast.Name) else ""


def _around(text: str, place: Place) -> object:
    """A handler, `_OTHERWISE`, or None if this function has no way around the line."""
    path = _path(parsed(text), place.line)
    if not path:
        return None
    for n, (node, part) in reversed(list(enumerate(path))):
        if isinstance(node, _FUNCTIONS):
            return None
        if isinstance(node, ast.If | ast.Match | ast.ExceptHandler):
            return _OTHERWISE
        if isinstance(node, ast.Try) and part == "body":
            looped = any(isinstance(one, _LOOPS) for one in _own(path[:n]))
            swallowing = [h for h in node.handlers if _goes_on(h, looped=looped)]
            if swallowing:
                return _alone(path[:n], swallowing, place)
        if isinstance(node, _LOOPS):
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
    inner = _own(outer)
    loops = [node for node in inner if isinstance(node, _LOOPS)]
    spans = [(handler.lineno, _last(handler)) for handler in handlers]
    jumps = [
        node.lineno
        for scope in (loops or inner)[-1:]
        for node in ast.walk(scope)
        if isinstance(node, ast.Continue | ast.Break | ast.Return)
        and (loops or node.lineno < place.line)
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


def _own(path: Sequence[tuple[ast.AST, str]]) -> list[ast.AST]:
    """Those of the innermost function, itself included, outermost first."""
    own: list[ast.AST] = []
    for node, _ in path:
        if isinstance(node, _FUNCTIONS):
            own = []
        own.append(node)
    return own


def _goes_on(handler: ast.ExceptHandler, *, looped: bool) -> bool:
    """Whether the program stays in its loop behind this handler.

    A function that has no loop around it returns to one.
    """
    leaving = (ast.Raise, ast.Break, ast.Return) if looped else (ast.Raise,)
    return not any(isinstance(statement, leaving) for statement in handler.body)


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
