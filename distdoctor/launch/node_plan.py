"""How a job over several nodes is watched: where the head listens, and who may come."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.journal.environment import (
    DEVICE_VARIABLE,
    HEAD_VARIABLE,
    MASK_KEY_VARIABLE,
    NCCL_LOG_VARIABLE,
    RAY_VARIABLE,
    RECORD_VARIABLE,
    SIZE_VARIABLE,
    STEPS_VARIABLE,
    TOKEN_VARIABLE,
)
from distdoctor.journal.layout import NODE_LOCK_FILE
from distdoctor.journal.private_files import open_private
from distdoctor.probes.node_entry import HeadText, place_here

if TYPE_CHECKING:
    from distdoctor.launch.node_head import NodeHead

_GIVEN = (
    *(MASK_KEY_VARIABLE, SIZE_VARIABLE, DEVICE_VARIABLE, NCCL_LOG_VARIABLE),
    *(RAY_VARIABLE, RECORD_VARIABLE, STEPS_VARIABLE),
)
"""What a node that was started by hand is told of the job's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A job over several nodes.

    Attributes:
        host: Address of the head, at which it listens.
        port: Port; 0: any.
        token: What nodes have to know.
        nodes: How many there are, the head's among them; 0: nobody has said.
        is_new: The token was made for this job, and nobody knows it yet.
        joined: The other nodes are started by `distdoctor join`, and not by a launcher
            that the head starts.
    """

    host: str
    port: int
    token: str
    nodes: int = 0
    is_new: bool = True
    joined: bool = False

    def address(self, port: int) -> str:
        """Where other nodes find the head, as HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{port}"

    def invitation(self, port: int) -> str:
        """How to start the job's part on the other nodes, as a line."""
        token = self.token if self.is_new else "…"
        return (
            f"distdoctor: on each other node: {TOKEN_VARIABLE}={token} "
            f"distdoctor join {self.address(port)} -- COMMAND\n"
        )


def _variables(plan: NodePlan, port: int) -> dict[str, str]:
    """What processes of the job, on all nodes, find in their environment.

    Args:
        plan: How the job is watched.
        port: Where the head listens.
    """
    text = HeadText(
        plan.address(port), os.urandom(8).hex(), place_here(), sys.executable
    )
    return {HEAD_VARIABLE: text.written(), TOKEN_VARIABLE: plan.token}


def head_for(
    plan: NodePlan,
    folder: Path,
    environment: dict[str, str],
    *,
    only_listens: bool = False,
) -> tuple[NodeHead, dict[str, str]]:
    """Let nodes come.

    Args:
        plan: How the job is watched.
        folder: The record folder.
        environment: Of the job on this node.
        only_listens: The job is recorded, and not watched.

    Returns:
        The head, and variables that processes of the job find on all nodes.
    """
    # Here, for the library is needed by no other job.
    from distdoctor.launch.node_head import NodeHead
    from distdoctor.launch.node_sockets import HeadSocket

    socket = HeadSocket(plan.host, plan.port, plan.token)
    variables = _variables(plan, socket.port)
    if plan.joined:
        sys.stderr.write(plan.invitation(socket.port))
        sys.stderr.flush()
    number = open_private(folder / NODE_LOCK_FILE, os.O_RDWR | os.O_CREAT)
    os.close(number)
    given = {name: environment[name] for name in _GIVEN if name in environment}
    told = {**given, **variables}
    return NodeHead(socket, folder, told, only_listens=only_listens), variables
