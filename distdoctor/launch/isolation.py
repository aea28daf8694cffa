"""Tells whether a job is on this machine alone, so that its ports may be its own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from distdoctor.launch.multi_command import BETWEEN

_REMOTE = {"srun", "mpirun", "mpiexec", "horovodrun", "ssh", "pdsh", "ray", "jsrun"}
_REMOTE |= {"horovod.runner.launch"}  # horovodrun as a module

_SHELLS = {"bash", "sh", "dash", "zsh", "make"}  # what they start is not seen here

_NODES = {"--nnodes", "--num-nodes", "--num-machines", "--node-rank", "--machine-rank"}
_ONE_NODE = {"1", "1:1", "0"}

_MASTERS = {"--master-addr", "--master-address", "--main-process-ip", "--rdzv-endpoint"}
_LOCAL = {"localhost", "127.0.0.1", "0.0.0.0", "::1", ""}  # noqa: S104 - compared

_URL = re.compile(r"(?:tcp|env)://([^:/]*)")


def may_be_isolated(
    command: Sequence[str], environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether all ranks of a job meet on this machine, and all are Python's.

    Commands that are given together are all here, however many machines they name.

    Args:
        command: The command that starts it.
        environment: What it inherits.
    """
    if BETWEEN in command:
        return True
    if environment.get("MASTER_ADDR", "") not in _LOCAL:
        return False
    words = [word for part in command for word in part.split("=", 1)]
    names = [Path(word).name for word in words[:4]]
    if any(name in _REMOTE | _SHELLS or name.endswith(".sh") for name in names):
        return False
    for option, value in pairwise(words):
        name = option.replace("_", "-")
        if name in _NODES and value not in _ONE_NODE:
            return False
        if name in _MASTERS and value.partition(":")[0] not in _LOCAL:
            return False
    urls = (_URL.match(word) for word in words)
    return all(url is None or url[1] in _LOCAL for url in urls)
