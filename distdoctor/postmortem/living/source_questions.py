"""What the source around a line tells of who stands there, while the job runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from distdoctor.model.events import Place
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.source_text import LARGEST_SOURCE, syntax_tree

_texts: dict[str, str] = {}


def source_line(place: Place, directory: str) -> str:
    """A line of the user's source; empty if it cannot be read.

    Args:
        place: The line.
        directory: Where the job runs.
    """
    lines = _text(place, directory).splitlines()
    return lines[place.line - 1] if 0 < place.line <= len(lines) else ""


def waits_for_handle(place: Place, directory: str) -> bool:
    """Whether a line calls `wait()` of anything.

    Args:
        place: The line.
        directory: Where the job runs.
    """
    return ".wait(" in source_line(place, directory)


def awaited_operation(place: Place, directory: str) -> str:
    """The operation that a function issues without waiting, if it is one alone.

    Args:
        place: A line of the function.
        directory: Where the job runs.

    Returns:
        Its name in `OPERATIONS`; empty: there is none, or several.
    """
    tree = syntax_tree(_text(place, directory))
    if tree is None:
        return ""
    around: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            node.lineno <= place.line <= (node.end_lineno or node.lineno)
        ):
            around = node  # the innermost comes last
    operations = set(_issued(around))
    return operations.pop() if len(operations) == 1 else ""


def is_in_for_loop(place: Place, directory: str) -> bool:
    """Whether a line stands in a `for` loop, which mostly comes to an end.

    Args:
        place: The line.
        directory: Where the job runs.
    """
    tree = syntax_tree(_text(place, directory))
    if tree is None:
        return False
    inner: list[ast.For | ast.AsyncFor | ast.While] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    return bool(inner) and not isinstance(inner[-1], ast.While)


def _issued(around: ast.AST) -> Iterator[str]:
    for node in ast.walk(around):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        if isinstance(function, ast.Name):
            name = function.id
        asynchronous = any(
            word.arg == "async_op"
            and not (isinstance(word.value, ast.Constant) and not word.value.value)
            for word in node.keywords
        )
        if name in {"isend", "irecv"}:
            yield name.removeprefix("i")
        elif asynchronous and name in CODE_OF and not OPERATIONS[CODE_OF[name]].sets_up:
            yield name


def _text(place: Place, directory: str) -> str:
    path = Path(directory, place.file)
    key = str(path)
    if key not in _texts:
        text = ""
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_SOURCE:
                text = path.read_text(errors="replace")
        except OSError:
            pass
        _texts[key] = text
    return _texts[key]
