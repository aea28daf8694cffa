"""Reads from a script's source whether its ranks are workers of Ray.

Ray starts them below processes of its own, for one program that the user starts.
"""

from __future__ import annotations

import ast

from distdoctor.launch.imported_names import bound_names, full_name, imports, written
from distdoctor.launch.script_source import ScriptSource

_STARTERS = {"ray.init", "ray.remote"}
_ENDINGS = ("Trainer", "Tuner")
"""How the names of classes of Ray end that start workers: `TorchTrainer`."""


def is_rays(source: ScriptSource) -> bool:
    """Whether Ray starts the ranks of a script.

    It does where the script makes a trainer of Ray's, or uses Ray itself. One that also
    joins a process group by itself may do without Ray, if it imports that only on the
    way on which it is used.

    Args:
        source: The script.
    """
    bound = bound_names(source.nodes, "ray")
    if not bound or not any(_starts(full_name(one, bound)) for one in _used(source)):
        return False
    return _requires_ray(source) or not any(
        isinstance(node, ast.Call)
        and written(node.func).rpartition(".")[2] == "init_process_group"
        for node in source.nodes
    )


def _starts(name: str) -> bool:
    return name in _STARTERS or (name.startswith("ray.") and name.endswith(_ENDINGS))


def _used(source: ScriptSource) -> list[ast.expr]:
    """What the source calls, or decorates with."""
    found: list[ast.expr] = []
    for node in source.nodes:
        if isinstance(node, ast.Call):
            found.append(node.func)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found += node.decorator_list
    return found


def _requires_ray(source: ScriptSource) -> bool:
    """Whether a script cannot be run without Ray: its first level imports it."""
    return any(
        name.partition(".")[0] == "ray"
        for tree in (source.script, *source.modules)
        for node in tree.body
        for _, name in imports(node)
    )
