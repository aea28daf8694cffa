"""Lines by which a program makes its gradients shorter by hand.

Such a function goes through parameters and changes their `grad` in place:

    total = sum(p.grad.norm() ** 2 for p in parameters).sqrt()
    for p in parameters:
        p.grad.mul_(bound / total)
"""

from __future__ import annotations

import ast

from distdoctor.analysis.source.program import Function, Program, called, own_nodes
from distdoctor.model.events import Place

_SCALING = frozenset({"mul_", "div_", "_foreach_mul_", "_foreach_div_"})

_ROOTS = frozenset({"sqrt", "sqrt_", "hypot", "norm", "vector_norm", "get_total_norm"})


def computed_norms(program: Program) -> list[Place]:
    """The last line of each such function that takes a root, or a norm.

    Args:
        program: The user's.

    Returns:
        Places, empty if no function does both; one for each that does.
    """
    found = []
    for function in program.functions:
        scaled = _scaled(function)
        roots = [line for line in _roots(function) if scaled and line <= max(scaled)]
        if roots:
            found.append(Place(function.file, max(roots), function.name))
    return found


def _scaled(function: Function) -> list[int]:
    """Lines that multiply something in place, where gradients are dealt with."""
    lines = []
    nodes = own_nodes(function.node)
    if not any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in nodes):
        return []
    for node in own_nodes(function.node):
        changed: ast.expr | None = None
        if isinstance(node, ast.Call) and called(node) in _SCALING:
            changed = (
                node.args[0] if called(node)[0] == "_" and node.args else node.func
            )
        elif isinstance(node, ast.AugAssign) and isinstance(
            node.op, ast.Mult | ast.Div
        ):
            changed = node.target
        if changed is not None:
            lines.append(changed.lineno)
    return lines


def _roots(function: Function) -> list[int]:
    lines = []
    for node in own_nodes(function.node):
        is_root = isinstance(node, ast.Call) and called(node) in _ROOTS
        is_power = (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and ast.unparse(node.right) in {"0.5", "1 / 2", "1.0 / 2", "1 / 2.0"}
        )
        if is_root or is_power:
            assert isinstance(node, ast.expr)
            lines.append(node.lineno)
    return lines
