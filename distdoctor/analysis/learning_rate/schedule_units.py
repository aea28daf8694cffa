"""What the length of a schedule is counted in, as the source tells by its names."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum, auto

from distdoctor.analysis.source.syntax_trees import last_name, parsed
from distdoctor.model.observations.checkpoints import Scheduled
from distdoctor.model.run import Run

_LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "CosineAnnealingWarmRestarts": ("T_0", 1),
    "LinearLR": ("total_iters", 3),
    "PolynomialLR": ("total_iters", 1),
}
"""By scheduler, the argument that is its length, and its position.

Source: torch 2.13, optim/lr_scheduler.py.
"""

_STEPS = ("step", "iter", "batch", "loader", "len", "update", "sample", "token")
_EPOCHS = ("epoch",)

_DEEPEST = 4  # names of names


class Unit(Enum):
    """What a length is counted in."""

    STEPS = auto()
    EPOCHS = auto()
    UNTOLD = auto()  # a number, or a name that says nothing


def unit_of_parts(run: Run, rank: int) -> Unit:
    """What the lengths of torch's schedulers are counted in, of those that a rank made.

    Steps where any of them names something of the kind.
    """
    units = {
        unit
        for text, lines in _files(run, rank)
        for unit in _units(parsed(text), lines)
    }
    for unit in (Unit.STEPS, Unit.EPOCHS):
        if unit in units:
            return unit
    return Unit.UNTOLD


def _files(run: Run, rank: int) -> Iterator[tuple[str, list[int]]]:
    """Files in which schedulers are made, with the lines that were seen to do so."""
    lines: dict[str, list[int]] = {}
    for made in run.of(Scheduled, rank):
        if made.place is not None:
            lines.setdefault(made.place.file, []).append(made.place.line)
    for file, its in lines.items():
        yield run.sources.get(file, ""), its


def _units(tree: ast.AST, lines: Sequence[int]) -> Iterator[Unit]:
    named = _assigned(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, position = _LENGTHS.get(last_name(node.func), ("", 0))
        last = node.end_lineno or node.lineno
        if not name or not any(node.lineno <= line <= last for line in lines):
            continue
        given = [one.value for one in node.keywords if one.arg == name]
        given += node.args[position : position + 1]
        if given and not _is_warm_up(node):
            yield _unit(set(_names(given[0], named, 0)))


def _is_warm_up(call: ast.Call) -> bool:
    """Whether a line rises: torch's begins low, and ends with the whole rate."""
    if last_name(call.func) != "LinearLR":
        return False
    ends = len(call.args) > 2 or any(one.arg == "end_factor" for one in call.keywords)
    return not ends


def _unit(names: set[str]) -> Unit:
    if any(part in name for name in names for part in _STEPS):
        return Unit.STEPS
    if any(part in name for name in names for part in _EPOCHS):
        return Unit.EPOCHS
    return Unit.UNTOLD


def _names(
    value: ast.AST, named: dict[str, list[ast.expr]], depth: int
) -> Iterator[str]:
    """Names in an expression, and in those that its names are given."""
    for part in ast.walk(value):
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript):
            name = last_name(part)
            yield name.lower()
            if depth < _DEEPEST and isinstance(part, ast.Name):
                for its in named.get(name, ()):
                    yield from _names(its, named, depth + 1)


def _assigned(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """By name, what a file gives it, wherever."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found.setdefault(name, []).append(value)
    return found
