"""Reads from a script's source whether it trains in one process, on several devices."""

from __future__ import annotations

import ast

from distdoctor.launch.imported_names import imports, written
from distdoctor.launch.script_source import LAUNCHER_VARIABLES, ScriptSource

_OF_RANKS = (
    *("torch.distributed", "torch.multiprocessing", "horovod", "accelerate", "ray"),
    *("deepspeed", "lightning", "pytorch_lightning", "mpi4py", "ignite", "composer"),
)
"""Packages that make ranks, or know of them."""


def is_data_parallel(source: ScriptSource) -> bool:
    """Whether a script uses `nn.DataParallel`, and nothing that ranks are made with.

    Args:
        source: The script.
    """
    names = {
        written(node.func).rpartition(".")[2]
        for node in source.nodes
        if isinstance(node, ast.Call)
    }
    if "DataParallel" not in names or "init_process_group" in names:
        return False
    if source.reads & LAUNCHER_VARIABLES:
        return False
    return not any(
        f"{meant}.".startswith(f"{package}.")
        for node in source.nodes
        for _, meant in imports(node)
        for package in _OF_RANKS
    )
