"""Lines of the user's source that are to do something, by how they read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from operator import attrgetter

from distdoctor.analysis.source.program import called
from distdoctor.analysis.source.syntax_trees import parsed, simple_name
from distdoctor.model.events import Place
from distdoctor.model.observations.optimizer_step import CLEAR, DROP, Act
from distdoctor.model.run import Run

_CLEARING = frozenset({"zero_grad", "zero_", "_foreach_zero_", "zero_gradients"})

_NORMS = frozenset({"norm", "vector_norm", "_foreach_norm", "get_total_norm"})

_MOST = 4


def clearing_in_vain(run: Run) -> list[Place]:
    """Lines that read as if they cleared gradients, and were never seen to do so.

    Args:
        run: The run that is judged.

    Returns:
        A few lines, by file and number.
    """
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
    """Lines that put something into an attribute of that name.

    Args:
        run: The run that is judged.
        attribute: The attribute's name.

    Returns:
        A few lines, by file and number.
    """
    found = [
        place
        for place, node in _nodes(run)
        if isinstance(node, ast.Assign) and _has(node.targets[0], attribute)
    ]
    return sorted(found, key=attrgetter("file", "line"))[:_MOST]


def unfreezing(run: Run) -> list[Place]:
    """Lines that make parameters ask for gradients, or may do so.

    Args:
        run: The run that is judged.

    Returns:
        A few lines, by file and number.
    """
    found = [place for place, node in _nodes(run) if _is_unfreezing(node)]
    return sorted(found, key=attrgetter("file", "line"))[:_MOST]


def norms_before(run: Run, place: Place) -> list[Place]:
    """Lines above that one, in its function, that read as a norm of a gradient.

    Args:
        run: The run that is judged.
        place: The line.

    Returns:
        A few lines, ascending.
    """
    found = [
        Place(place.file, node.lineno, place.function)
        for node in _function_around(run, place)
        if isinstance(node, ast.Call)
        and node.lineno < place.line
        and called(node) in _NORMS
        and any(_has(part, "grad") for part in ast.walk(node))
    ]
    return sorted(set(found), key=attrgetter("line"))[:_MOST]


def norms_called_before(run: Run, place: Place) -> list[Place]:
    """Lines above that one, in its function, that call what reads as a norm of one.

    Args:
        run: The run that is judged.
        place: The line.

    Returns:
        A few lines, ascending.
    """
    taking = set(_taking_norms(run))
    around = list(_function_around(run, place))
    instead = [one for one in around if isinstance(one, ast.If)]
    found = [
        Place(place.file, node.lineno, place.function)
        for node in around
        if isinstance(node, ast.Call)
        and node.lineno < place.line
        and called(node) in taking
        and not any(_chooses(one, node.lineno, place.line) for one in instead)
    ]
    return sorted(set(found), key=attrgetter("line"))[:_MOST]


def _chooses(branch: ast.If, first: int, second: int) -> bool:
    """Whether the first line is in what is done if, and the second in what is else."""
    if not branch.orelse:
        return False
    begin, middle = branch.body[0].lineno, branch.orelse[0].lineno
    end = branch.end_lineno or 0
    return begin <= first < middle <= second <= end


def _taking_norms(run: Run) -> Iterator[str]:
    """Names of the user's functions that take a norm, and have to do with gradients."""
    for text in run.sources.values():
        for function in ast.walk(parsed(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = list(ast.walk(function))
                norms = any(
                    isinstance(one, ast.Call) and called(one) in _NORMS for one in inner
                )
                if norms and any("grad" in simple_name(one) for one in inner):
                    yield function.name


def _function_around(run: Run, place: Place) -> Iterator[ast.AST]:
    """What stands in the innermost function that has a line."""
    around = [
        node
        for node in ast.walk(parsed(run.sources.get(place.file, "")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= place.line <= (node.end_lineno or 0)
    ]
    if around:
        yield from ast.walk(max(around, key=attrgetter("lineno")))


def _is_unfreezing(node: ast.stmt | ast.Call) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="requires_grad_")):
            given = [*node.args, *(one.value for one in node.keywords)]
        case ast.Assign(targets=[ast.Attribute(attr="requires_grad")]):
            given = [node.value]
        case _:
            return False
    return not any(
        isinstance(one, ast.Constant) and one.value is False for one in given
    )


def _nodes(run: Run) -> Iterator[tuple[Place, ast.stmt | ast.Call]]:
    for file, text in run.sources.items():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Assign | ast.Call):
                yield Place(file, node.lineno), node


def _is_clearing(node: ast.stmt | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in _CLEARING
    if not isinstance(node, ast.Assign) or not _has(node.targets[0], "grad"):
        return False
    return isinstance(node.value, ast.Constant) and node.value.value is None


def _has(target: ast.AST, attribute: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == attribute
