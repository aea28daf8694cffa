"""Runs the part of a job on this node, for a head on another: forwards, and obeys."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from distdoctor.journal.environment import (
    CLOCK_VARIABLE,
    FOLDER_VARIABLE,
    LAUNCHER_VARIABLE,
    NODE_VARIABLE,
    OUTPUT_VARIABLE,
    OWNER_VARIABLE,
    RAY_VARIABLE,
    SUPERVISOR_VARIABLE,
    TOKEN_VARIABLE,
)
from distdoctor.journal.layout import NODE_LOCK_FILE
from distdoctor.journal.private_files import make_private_folder, open_private
from distdoctor.launch.command import starts_torchrun
from distdoctor.launch.folder_guard import guarded_folder
from distdoctor.launch.interruption import postponed
from distdoctor.launch.node_agent import NodeAgent
from distdoctor.launch.node_messages import Welcome
from distdoctor.launch.node_recording import recorded_part
from distdoctor.launch.node_sockets import NodeSocket
from distdoctor.launch.process_tree import ProcessTree
from distdoctor.launch.ray_sessions import make_likewise, remove_ray_folder
from distdoctor.probes import NEEDLE

MEET_S = 300.0
"""Nodes may be started in any order, and by hand."""

_FINISH_S = 10.0
_NOT_OURS = (OWNER_VARIABLE, OUTPUT_VARIABLE, TOKEN_VARIABLE, SUPERVISOR_VARIABLE)


def join(address: str, token: str, command: Sequence[str]) -> int:
    """Run a command under the watch of a head on another node.

    If the head only records the job, the command runs as it would without us.

    Args:
        address: Of the head, HOST:PORT.
        token: What the head and its nodes know.
        command: Program and arguments.

    Returns:
        Its exit status, as a shell counts it.

    Raises:
        LaunchRefused: There is no head, or the command cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="distdoctor-node-")).resolve()
    agent = NodeAgent(NodeSocket(address, token), folder)
    with ExitStack() as left:
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        left.callback(remove_ray_folder, folder)
        left.callback(agent.close)
        make_private_folder(folder, below=0)
        os.close(open_private(folder / NODE_LOCK_FILE, os.O_RDWR | os.O_CREAT))
        sys.stderr.write(f"distdoctor: this node joins {address}\n")
        welcome = agent.meet(MEET_S)
        environment = _environment(welcome, folder)
        make_likewise(folder, environment.pop(RAY_VARIABLE, ""))
        if agent.only_records:
            with guarded_folder(folder):
                return recorded_part(agent, command, environment)
        environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        environment.setdefault("PYTHONUNBUFFERED", "1")
        if starts_torchrun(command):
            environment[LAUNCHER_VARIABLE] = "1"
        with postponed():
            tree = ProcessTree(
                command,
                environment,
                Path.cwd(),
                str(folder),
                streams=(None, None, None),
            )
            left.callback(agent.finish, _FINISH_S)  # behind what ends the processes
            left.callback(tree.end, launcher_first=starts_torchrun(command))
        while tree.root.poll() is None and not (agent.ends or agent.lost):
            agent.step()
        status = tree.root.poll()
        if status is None:
            # One that waits for others, as that which keeps a node of Ray, ends so.
            status = 0 if agent.ends and agent.is_done else 1
            why = "the head is lost" if agent.lost else "the head ends the job"
            why = why if status else "the job is done"
            sys.stderr.write(f"distdoctor: {why}: this node's part ends\n")
    return status if status >= 0 else 128 - status


def _environment(welcome: Welcome, folder: Path) -> dict[str, str]:
    inherited = {n: value for n, value in os.environ.items() if n not in _NOT_OURS}
    path = [str(NEEDLE), os.environ.get("PYTHONPATH", "")]
    variables = {
        **inherited,
        **welcome.variables,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        NODE_VARIABLE: str(folder),
        FOLDER_VARIABLE: str(folder),
        CLOCK_VARIABLE: str(welcome.ahead_ns),
    }
    variables.pop(TOKEN_VARIABLE, None)  # its ranks need none
    return variables
