"""Reads from a script's source whether its ranks are Horovod's.

They are if it calls `hvd.init()`. A script that can join torch.distributed as well is
judged by which of the two gives it its rank.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from distdoctor.launch.horovod_installation import Framework
from distdoctor.launch.imported_names import bound_names, full_name, imports, written
from distdoctor.launch.script_source import LAUNCHER_VARIABLES, ScriptSource

_MODULES = {
    "horovod.torch": Framework.TORCH,
    "horovod.tensorflow": Framework.TENSORFLOW,
    "horovod.keras": Framework.TENSORFLOW,
    "horovod.tensorflow.keras": Framework.TENSORFLOW,
}
"""The modules of Horovod that have `init`, and what each of them is for."""

_RUNNERS = {"horovod.run", "horovod.runner.run"}
"""Functions that start ranks from within a script."""

_OF_ALL = ("init", "rank")  # that matter here, of `from horovod.torch import *`

_NAMES_IT = ("horovod", "hvd")


def is_horovods(source: ScriptSource, arguments: Sequence[str]) -> bool:
    """Whether Horovod makes ranks of a script's processes.

    Args:
        source: The script.
        arguments: What it gets; a script for both may be told there what to use.
    """
    if not _inits(source.nodes, source):
        return False
    if not _inits_torch(source.nodes):
        return True
    if _hands_its_rank_on(source):
        return True
    if any(name in word.lower() for word in arguments for name in _NAMES_IT):
        return True
    if source.reads & LAUNCHER_VARIABLES:
        return False
    alone = list(ast.walk(source.script))
    return _inits(alone, source) and not _inits_torch(alone)


def starts_by_itself(source: ScriptSource, arguments: Sequence[str]) -> bool:
    """Whether a script starts its ranks by `horovod.run`.

    Many do where an option is given, and wait for a launcher where it is not.

    Args:
        source: The script.
        arguments: What it gets.
    """
    given = {
        word.lstrip("-").partition("=")[0].replace("-", "_")
        for word in arguments
        if word.startswith("-")
    }
    return any(asked <= given for asked in _runs(source.script, _bound(source)))


def _runs(script: ast.Module, bound: Mapping[str, str]) -> Iterator[set[str]]:
    """By call of `horovod.run`, the options that lead to it; none where all ways do."""
    parents = {
        child: node for node in ast.walk(script) for child in ast.iter_child_nodes(node)
    }
    for call in ast.walk(script):
        if isinstance(call, ast.Call) and full_name(call.func, bound) in _RUNNERS:
            options, child = set[str](), cast("ast.AST", call)
            while child in parents:
                child, inner = parents[child], child
                if isinstance(child, ast.If) and child.orelse:
                    options |= _leading(child, inner)
            yield options


def _leading(branches: ast.If, inner: ast.AST) -> set[str]:
    """The option that leads to a statement of a branch; empty if not just one does."""
    negative = _is_negative(branches.test)
    if inner not in (branches.orelse if negative else branches.body):
        return set()
    named = (one for one in ast.walk(branches.test) if isinstance(one, ast.Attribute))
    options = {one.attr for one in named}
    return options if len(options) == 1 else set()


def _is_negative(test: ast.expr) -> bool:
    """Whether a condition holds where an option is not given."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.Is | ast.Eq) and any(
            isinstance(one, ast.Constant) and one.value is None
            for one in test.comparators
        )
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def requires_horovod(source: ScriptSource) -> bool:
    """Whether a script cannot be run without Horovod.

    An import within a function, an `if` or a `try` may never happen.
    """
    return any(
        name.partition(".")[0] == "horovod"
        for tree in (source.script, *source.modules)
        for node in tree.body
        for _, name in imports(node, _OF_ALL)
    )


def framework_of(source: ScriptSource) -> Framework:
    """What a script uses Horovod with."""
    names = set(_bound(source).values())
    used = {kind for module, kind in _MODULES.items() if module in names}
    return Framework.TENSORFLOW if used == {Framework.TENSORFLOW} else Framework.TORCH


def _inits(nodes: Sequence[ast.AST], source: ScriptSource) -> bool:
    bound = _bound(source)
    return any(
        full_name(node.func, bound) in {f"{module}.init" for module in _MODULES}
        for node in nodes
        if isinstance(node, ast.Call)
    )


def _inits_torch(nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call)
        and written(node.func).rpartition(".")[2] == "init_process_group"
        for node in nodes
    )


def _hands_its_rank_on(source: ScriptSource) -> bool:
    """Whether torch.distributed is told the rank that Horovod gave.

    As an argument, or by the environment.
    """
    bound = _bound(source)
    ranks = {f"{module}.rank" for module in _MODULES}

    def has_rank(values: Sequence[ast.AST]) -> bool:
        return any(
            isinstance(node, ast.Call) and full_name(node.func, bound) in ranks
            for value in values
            for node in ast.walk(value)
        )

    for node in source.nodes:
        if isinstance(node, ast.Call) and _inits_torch([node]):
            if has_rank([*node.args, *node.keywords]):
                return True
        elif (
            isinstance(node, ast.Assign)
            and any(_sets_rank(target) for target in node.targets)
            and has_rank([node.value])
        ):
            return True
    return False


def _sets_rank(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "RANK"
    )


def _bound(source: ScriptSource) -> dict[str, str]:
    """Names that imports of Horovod bind, and what each is, with its modules."""
    return bound_names(source.nodes, "horovod", _OF_ALL)
