"""By which line of the source a loss may have become NaN or Inf."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from operator import attrgetter

from distdoctor.analysis.source.syntax_trees import parsed
from distdoctor.model.events import Place
from distdoctor.model.observations import gradients as words
from distdoctor.model.run import Run

OPERATIONS = {
    words.DIVISION_BY_ZERO: "a division by 0",
    words.LOGARITHM_OF_ZERO: "the logarithm of 0",
    words.LOGARITHM_OF_NEGATIVE: "the logarithm of a negative number",
    words.ROOT_OF_NEGATIVE: "the root of a negative number",
    words.EXPONENTIAL_TOO_LARGE: "an exponential that is too large for its dtype",
    words.MEAN_OF_NOTHING: "a mean of no numbers at all",
    words.ALL_IGNORED: "a loss of labels that are all to be ignored",
}

_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p", "log_"})

_CALLS = {
    words.DIVISION_BY_ZERO: frozenset(
        {"div", "div_", "true_divide", "divide", "reciprocal", "rsqrt"}
    ),
    words.LOGARITHM_OF_ZERO: _LOGARITHMS,
    words.LOGARITHM_OF_NEGATIVE: _LOGARITHMS,
    words.ROOT_OF_NEGATIVE: frozenset({"sqrt", "sqrt_", "rsqrt", "pow"}),
    words.EXPONENTIAL_TOO_LARGE: frozenset({"exp", "exp_"}),
    words.MEAN_OF_NOTHING: frozenset({"mean", "mse_loss", "l1_loss"}),
    words.ALL_IGNORED: frozenset({"cross_entropy", "nll_loss"}),
}

_MOST = 2
"""Lines that are told; among more of them, none says anything."""


def computing(run: Run, operation: str) -> list[Place]:
    """The lines that can have made it: in models' forward, or else anywhere.

    Args:
        run: The run that is judged.
        operation: Name of the operation, as the graph of autograd has it.

    Returns:
        A few lines, by file and number; empty if there are many, or the operation is
        not known.
    """
    if operation not in _CALLS:
        return []
    # Of functions in each other, the inner one comes last.
    by_line = {(one.file, one.line): one for one in _lines(run, operation)}
    everywhere = list(by_line.values())
    inside = [place for place in everywhere if place.function == "forward"]
    found = sorted(inside or everywhere, key=attrgetter("file", "line"))
    return found if len(found) <= _MOST else []


def _lines(run: Run, operation: str) -> Iterator[Place]:
    for file, text in run.sources.items():
        for function in ast.walk(parsed(text)):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.expr | ast.AugAssign) and _is_of(
                        node, operation
                    ):
                        yield Place(file, node.lineno, function.name)


def _is_of(node: ast.expr | ast.AugAssign, operation: str) -> bool:
    """Whether an expression is such an operation, on something that can vary."""
    match node:
        case ast.BinOp(op=ast.Div(), right=right):
            return operation == words.DIVISION_BY_ZERO and _varies(right)
        case ast.AugAssign(op=ast.Div(), value=right):
            return operation == words.DIVISION_BY_ZERO and _varies(right)
        case ast.BinOp(op=ast.Pow()):
            return operation == words.ROOT_OF_NEGATIVE
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _CALLS[operation]
    return False


def _varies(divisor: ast.expr) -> bool:
    """Whether a divisor is none that is written down."""
    return not all(
        isinstance(one, ast.Constant | ast.operator | ast.unaryop | ast.BinOp)
        for one in ast.walk(divisor)
    )
