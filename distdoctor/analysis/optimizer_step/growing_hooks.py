"""Hooks that pile up: where they are registered, and whether they change something."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.syntax_trees import parsed
from distdoctor.model.events import Place
from distdoctor.model.observations.optimizer_step import Piled
from distdoctor.model.run import Run

_KEEPING = frozenset(
    {"append", "extend", "add", "update", "setdefault", "put", "print", "write"}
    | {"log", "info", "debug", "record", "observe", "add_scalar"}
)
"""Functions that a hook calls to note something; what they give back is nothing."""


def piled(run: Run) -> list[list[Piled]]:
    """Of each hook, what each rank tells of it.

    Args:
        run: The run that is judged.

    Returns:
        For each hook a list, what was seen last coming last.
    """
    found: dict[tuple[Place | None, str], list[Piled]] = {}
    for rank in run.seen:
        for one in run.of(Piled, rank):
            found.setdefault((one.place, one.name), []).append(one)
    return list(found.values())


def gives(run: Run, hook: Place | None) -> bool:
    """Whether a hook gives something back, which then takes the place of what it got.

    False if its source is not at hand.

    Args:
        run: The run that is judged.
        hook: The line at which the hook is written; None: nobody knows.

    Returns:
        Whether it does.
    """
    return hook is not None and any(map(_gives, _written(run, hook)))


def registering(run: Run, hook: Place) -> list[Place]:
    """The lines that register a hook; empty if they are not found.

    Args:
        run: The run that is judged.
        hook: The line at which the hook is written.

    Returns:
        Lines of the hook's own file.
    """
    name = hook.function.rpartition(".")[2]
    tree = parsed(run.sources.get(hook.file, ""))
    return [
        Place(hook.file, node.lineno, "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("register_")
        and node.func.attr.endswith("_hook")
        and (
            node.lineno <= hook.line <= (node.end_lineno or node.lineno)
            or any(_is_named(argument, name) for argument in node.args)
        )
    ]


def _written(run: Run, hook: Place) -> Iterator[ast.Lambda | ast.FunctionDef]:
    for node in ast.walk(parsed(run.sources.get(hook.file, ""))):
        if isinstance(node, ast.Lambda) and node.lineno == hook.line:
            yield node
        elif isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == hook.line:
                yield node


def _gives(node: ast.Lambda | ast.FunctionDef) -> bool:
    if isinstance(node, ast.FunctionDef):
        return any(
            isinstance(inner, ast.Return)
            and inner.value is not None
            and not _is_nothing(inner.value)
            for inner in ast.walk(node)
        )
    return not _is_nothing(node.body)


def _is_nothing(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=None):
            return True
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _KEEPING
    return False


def _is_named(argument: ast.expr, name: str) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(argument)
    )
