"""Calls that issue work, and the tensors that their results come to."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.blocks import Block
from distdoctor.analysis.source.program import called
from distdoctor.analysis.source.tensor_usage import TENSOR, Held, parts_of, path_of

_OUTPUTS = {
    "all_reduce": ("all_reduce", "tensor", 0),
    "broadcast": ("broadcast", "tensor", 0),
    "reduce": ("reduce", "tensor", 0),
    "all_gather": ("all_gather", "tensor_list", 0),
    "all_gather_into_tensor": ("all_gather_into_tensor", "output_tensor", 0),
    "all_gather_single": ("all_gather_into_tensor", "output_tensor", 0),
    "_all_gather_base": ("all_gather_into_tensor", "output_tensor", 0),
    "scatter": ("scatter", "tensor", 0),
    "reduce_scatter": ("reduce_scatter", "output", 0),
    "reduce_scatter_tensor": ("reduce_scatter_tensor", "output", 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", "output", 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "output", 0),
    "all_to_all": ("all_to_all", "output_tensor_list", 0),
    "all_to_all_single": ("all_to_all_single", "output", 0),
    "irecv": ("recv", "tensor", 0),
}
"""By function: how what it calls is known (`Operation.name`), and which argument is the
result, by keyword and position. Source: torch 2.13, distributed/distributed_c10d.py."""

_LISTS = frozenset({"all_gather", "all_to_all"})

_SAME_MEMORY = frozenset({"view", "view_as", "detach", "squeeze", "unsqueeze"})


def issues(call: ast.Call, op: str) -> bool:
    """Whether a call issues an operation, and goes on before that is complete.

    Args:
        call: The call.
        op: Name of the operation, as in `OPERATIONS`.

    Returns:
        Whether it does, as far as its name and arguments tell.
    """
    name = called(call)
    if name not in _OUTPUTS or _OUTPUTS[name][0] != op:
        return False
    return name == "irecv" or _is_asynchronous(call)


def output(call: ast.Call) -> dict[str, Held]:
    """The result of a call, by its name.

    Args:
        call: A call that `issues` an operation.

    Returns:
        One entry, or none if the result has no name.
    """
    _, keyword, position = _OUTPUTS[called(call)]
    given = [one.value for one in call.keywords if one.arg == keyword]
    given += call.args[position : position + 1]
    path = path_of(viewed(given[0])) if given else ""
    held: Held = "several" if called(call) in _LISTS else TENSOR
    return {path: held} if path else {}


def viewed(node: ast.expr) -> ast.expr:
    """What an expression is another view of, or itself.

    Args:
        node: The expression.

    Returns:
        The expression that has the memory.
    """
    match node:
        case ast.Call(func=ast.Attribute(value=base, attr=name)) if (
            name in _SAME_MEMORY
        ):
            return viewed(base)
        case ast.Attribute(value=base, attr="data"):
            return viewed(base)
    return node


def aliases(block: Block, path: str) -> set[str]:
    """Other names that a tensor has, given to it in the lines before.

    Args:
        block: The block that the call stands in.
        path: The tensor's name, as of `path_of`.

    Returns:
        The names, without that one.
    """
    found, known, stored = set[str](), {path}, set[str]()
    _, _, statements, at = block
    for statement in reversed(statements[:at]):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = path_of(statement.targets[0])
            source = path_of(viewed(statement.value))
            if target and source and target in known - stored and source not in stored:
                found.add(source)
                known.add(source)
            elif target and source in known - stored and target not in stored:
                found.add(target)
        stored |= {
            path_of(part)
            for part in parts_of(statement)
            if isinstance(part, ast.Name | ast.Attribute)
            and isinstance(part.ctx, ast.Store | ast.Del)
        }
    return found - {path}


def is_bound_inside(statement: ast.stmt, held: dict[str, Held]) -> bool:
    """Whether a comprehension goes through the tensors.

    Args:
        statement: The statement.
        held: Tensors on their way, by name.

    Returns:
        Whether one of its comprehensions binds a name of theirs.
    """
    roots = {path.partition(".")[0] for path in held}
    return any(
        isinstance(name, ast.Name) and name.id in roots
        for part in parts_of(statement)
        if isinstance(part, ast.comprehension)
        for name in ast.walk(part.target)
    )


def _is_asynchronous(call: ast.Call) -> bool:
    given = [one.value for one in call.keywords if one.arg == "async_op"]
    if not given:
        return len(call.args) > 2 and _is_true(call.args[-1])
    return not isinstance(given[0], ast.Constant) or bool(given[0].value)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
