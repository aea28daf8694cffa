"""What to start for a script: torchrun, or plain Python if it starts its own ranks."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from distdoctor.errors import LaunchRefused

_SPAWNERS = {"spawn", "start_processes", "Process", "notebook_launcher"}
_LAUNCHER_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}

TORCHRUN = "torch.distributed.run"
"""The module behind `torchrun`."""


class Launcher(StrEnum):
    """How a script's ranks come to life."""

    AUTO = "auto"
    TORCHRUN = "torchrun"
    PYTHON = "python"


def command_for(
    script: Path, arguments: Sequence[str], ranks: int, launcher: Launcher, logs: Path
) -> list[str]:
    """The command that runs a script on so many ranks.

    Args:
        script: The user's program.
        arguments: Its arguments.
        ranks: How many; a script that starts its own ranks decides for itself.
        launcher: Which way; AUTO looks into the script.
        logs: Folder for the launcher's logs.

    Raises:
        LaunchRefused: The script is not there, is no Python, or ranks is below 1.
    """
    if ranks < 1:
        raise LaunchRefused(f"-n {ranks}: give the number of ranks, 1 or more")
    if not script.is_file():
        raise LaunchRefused(
            f"there is no script {script}; give a Python file, or a command after `--`"
        )
    tree = _parse(script)
    if launcher is Launcher.AUTO:
        launcher = _look_into(tree)
    if launcher is Launcher.PYTHON:
        return [sys.executable, str(script), *arguments]
    return [
        *(sys.executable, "-m", TORCHRUN, "--standalone"),
        *("--nproc-per-node", str(ranks), "--tee", "3", "--log-dir", str(logs)),
        *(str(script), *arguments),
    ]


def given_command(command: Sequence[str]) -> list[str]:
    """The user's own command, with its program found.

    Raises:
        LaunchRefused: There is no such program.
    """
    program = shutil.which(command[0])
    if program is None:
        raise LaunchRefused(
            f"there is no program {command[0]!r} on PATH; is its environment active?"
        )
    return [program, *command[1:]]


def script_in(command: Sequence[str]) -> str:
    """The Python file a command runs, as the reader knows the job."""
    for word in command[1:]:
        if word.endswith(".py"):
            return word
    return Path(command[0]).name


def starts_torchrun(command: Sequence[str]) -> bool:
    """Whether a command is torchrun, by any of its names."""
    words = list(command[:4])
    return TORCHRUN in words or any(Path(word).name == "torchrun" for word in words)


def _parse(script: Path) -> ast.Module:
    try:
        return ast.parse(script.read_bytes(), filename=str(script))
    except SyntaxError as error:
        if error.lineno is None:  # null bytes, or an encoding that does not fit
            raise LaunchRefused(f"{script} is not Python source: {error}") from error
        raise LaunchRefused(
            f"{script}, line {error.lineno}: {error.msg}; the script cannot be run"
        ) from error
    except ValueError as error:
        raise LaunchRefused(f"{script} is not Python source: {error}") from error
    except OSError as error:
        raise LaunchRefused(f"{script} cannot be read: {error.strerror}") from error


def _look_into(tree: ast.Module) -> Launcher:
    """PYTHON for a script that starts ranks or plays one by setting the variables."""
    spawns = sets = reads = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            spawns |= name in _SPAWNERS and not _is_of(node.func, "psutil")
            reads |= name in {"get", "getenv"} and _names_launcher(node.args)
        elif isinstance(node, ast.Assign):
            sets |= any(
                isinstance(target, ast.Subscript) and _names_launcher([target.slice])
                for target in node.targets
            )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            reads |= _names_launcher([node.slice])
        elif isinstance(node, ast.Compare):
            reads |= _names_launcher([node.left])  # "RANK" in os.environ
    # A script that both sets and asks plays a rank if it starts others, and otherwise
    # only has defaults for runs without a launcher.
    own = (sets or not reads) if spawns else (sets and not reads)
    return Launcher.PYTHON if own else Launcher.TORCHRUN


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_of(node: ast.expr, module: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    )


def _names_launcher(nodes: Sequence[ast.expr]) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value in _LAUNCHER_VARIABLES
        for node in nodes
    )
