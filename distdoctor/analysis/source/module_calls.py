"""Which calls of a program are calls of modules of torch, or of the user's."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.program import Function, Program, called
from distdoctor.analysis.source.tensor_usage import path_of

_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"}
)
_STILL_MODULES = frozenset({"to", "cuda", "cpu", "train", "eval", "float", "double"})
_ANNOTATIONS = frozenset({"nn.Module", "torch.nn.Module", "Module"})


def is_module(program: Program, function: Function, node: ast.expr) -> bool:
    """Whether what is called is surely a module of torch, or a wrapped one.

    Args:
        program: The user's files.
        function: The function that the call stands in.
        node: What is called.

    Returns:
        Whether it is; False if nobody knows.
    """
    values = _values(program, function, node)
    if values:
        return all(map(_makes_module, values))
    return isinstance(node, ast.Name) and _is_annotated_module(function, node.id)


def forward_of(program: Program, function: Function, node: ast.expr) -> Function | None:
    """The `forward` of the user's module that is called; None if it is none.

    Args:
        program: The user's files.
        function: The function that the call stands in.
        node: What is called.

    Returns:
        The method, or None.
    """
    names = {_class_made(value) for value in _values(program, function, node)}
    if len(names) != 1:
        return None
    wanted = f"{names.pop()}.forward"
    found = [one for one in program.named("forward") if one.name.endswith(wanted)]
    return found[0] if len(found) == 1 else None


def _values(program: Program, function: Function, node: ast.expr) -> list[ast.expr]:
    """All that is assigned to what is called."""
    uses = []
    if isinstance(node, ast.Name):
        uses = program.assigned.get((function, node.id), [])
        module = program.module_of(function.file)
        if not uses and module and not program.binds(function, node.id):
            uses = program.assigned.get((module, node.id), [])
    elif isinstance(node, ast.Attribute):
        uses = program.stored.get(node.attr, [])
    return [use.node for use in uses]


def _is_annotated_module(function: Function, name: str) -> bool:
    """Whether a parameter is said to be a module."""
    if isinstance(function.node, ast.Module):
        return False
    arguments = function.node.args
    return any(
        one.arg == name
        and one.annotation is not None
        and ast.unparse(one.annotation) in _ANNOTATIONS
        for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    )


def _makes_module(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    if name in _WRAPPERS:
        return True
    if isinstance(node.func, ast.Attribute):
        if name in _STILL_MODULES:
            return _makes_module(node.func.value)
        path = path_of(node.func)
        return path.startswith(("nn.", "torch.nn.")) and name[:1].isupper()
    return False


def _class_made(node: ast.expr) -> str:
    """The name of what an object is made by: `Net(…)`, `Net(…).to(device)`."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute) and node.func.attr in _STILL_MODULES:
        return _class_made(node.func.value)
    return called(node)
