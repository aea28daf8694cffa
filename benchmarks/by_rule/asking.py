"""What operators ask of a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

COLLECTIVES = frozenset(
    [
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "all_gather_into_tensor",
        "gather",
        "scatter",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
    ]
)
REDUCING = frozenset({"all_reduce", "reduce"})
ROOTED = frozenset({"broadcast", "reduce"})

WRAPPERS = frozenset({"DistributedDataParallel", "DDP"})
SAMPLER = "DistributedSampler"
OPTIMIZERS = frozenset(
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam"]
)


def name_of(call: ast.AST) -> str:
    """The last part of what is called: `all_reduce` of `dist.all_reduce(x)`."""
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_collective(node: ast.AST, names: frozenset[str] = COLLECTIVES) -> bool:
    """Whether a node is a call of a collective, as `dist.all_reduce(...)`."""
    if not isinstance(node, ast.Call) or name_of(node) not in names:
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id not in {"gather", "scatter", "reduce"}
    assert isinstance(node.func, ast.Attribute)
    return ast.unparse(node.func.value) in {"dist", "torch.distributed"}


def is_method(node: ast.AST, name: str) -> bool:
    """Whether a node is a call `something.name(...)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    )


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """All calls inside a node, but not in functions that are defined there."""
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from calls(child)


def call_of(statement: ast.stmt) -> ast.Call | None:
    """The call that a statement is, if it is one whose result is dropped."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return statement.value
    return None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of an argument that is given by name."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """The value of an argument that is given by position or by name."""
    if position < len(call.args):
        return call.args[position]
    return keyword(call, name)


def is_asynchronous(call: ast.Call) -> bool:
    """Whether a collective may return before it is done."""
    return keyword(call, "async_op") is not None


def has(node: ast.AST, method: str) -> bool:
    """Whether a method of this name is called inside."""
    return any(is_method(call, method) for call in calls(node))


def wrapped_names(tree: ast.AST) -> dict[str, ast.Assign]:
    """Texts of what holds a DDP model, such as `model` or `self.model`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = node.value
            if isinstance(value, ast.Call) and name_of(value) in WRAPPERS:
                found[ast.unparse(node.targets[0])] = node
    return found
