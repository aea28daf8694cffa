"""Builds the command that starts a script's ranks.

That is torchrun, or horovodrun if Horovod makes its ranks, or mpirun if mpi4py tells
them, or plain Python if it starts its own ranks or has none, or one command per rank if
it is told its rank as by hand or by a scheduler.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.launch import multi_command
from distdoctor.launch.allocation import is_scheduled, meeting_point, of_rank
from distdoctor.launch.horovod_source import (
    framework_of,
    is_horovods,
    requires_horovod,
    starts_by_itself,
)
from distdoctor.launch.horovodrun import (
    horovod_problem,
    horovodrun,
    require_horovod,
    starts_horovodrun,
)
from distdoctor.launch.launcher_arguments import gives_place, rank_arguments, takes_rank
from distdoctor.launch.lone_source import is_data_parallel
from distdoctor.launch.mpi_source import is_mpis, mpirun, starts_mpirun
from distdoctor.launch.ray_source import is_rays
from distdoctor.launch.script_source import (
    LAUNCHER_VARIABLES,
    ScriptSource,
    read_source,
)
from distdoctor.model.source_text import conversion, is_notebook
from distdoctor.probes import NEEDLE

_LOOPBACK = "127.0.0.1"
_LOCAL_RANK = "${local_rank}"  # torchrun puts each rank's own in its place

TORCHRUN = "torch.distributed.run"
"""The module behind `torchrun`."""

_TORCHRUNS = {TORCHRUN, "torch.distributed.launch"}  # the second calls the first


class Launcher(StrEnum):
    """The ways to start a script's ranks."""

    AUTO = "auto"
    TORCHRUN = "torchrun"
    PYTHON = "python"
    COMMANDS = "commands"
    HOROVOD = "horovod"
    MPI = "mpi"


def command_for(
    script: Path, arguments: Sequence[str], ranks: int, launcher: Launcher, logs: Path
) -> list[str]:
    """The command that runs a script on a number of ranks.

    Args:
        script: The user's program.
        arguments: Its arguments; with `:::` between them, those of each rank.
        ranks: How many; a script that starts its own ranks decides for itself.
        launcher: Which way; AUTO looks into the script.
        logs: Folder for the launcher's logs.

    Raises:
        LaunchRefused: The script is not there, is no Python, or ranks is below 1; or
            it needs a Horovod that is not there, or cannot be used; or an mpirun.
    """
    if ranks < 1:
        raise LaunchRefused(f"-n {ranks}: give the number of ranks, 1 or more")
    source = source_of(script)
    program = [sys.executable, str(script)]
    if multi_command.BETWEEN in arguments:
        own = multi_command.split(arguments)
        return _together("rank", [[*program, *part] for part in own])
    if launcher is Launcher.AUTO:
        launcher = _look_into(source, arguments)
    if launcher is Launcher.PYTHON:
        return [*program, *arguments]
    if launcher is Launcher.COMMANDS:
        return _by_hand(source, program, arguments, ranks)
    if launcher is Launcher.HOROVOD:
        require_horovod(framework_of(source))
        return horovodrun([*program, *arguments], ranks)
    if launcher is Launcher.MPI:
        return mpirun([*program, *arguments], ranks)
    extra = rank_arguments(source, arguments, _LOCAL_RANK, ranks, by_hand=False)
    return [
        # Ranks are told this address, and not one that the host's name leads to.
        *(sys.executable, "-P", "-m", TORCHRUN, "--standalone"),
        *("--local-addr", _LOOPBACK, "--nproc-per-node", str(ranks)),
        *("--log-dir", str(logs)),
        *(str(script), *extra, *arguments),
    ]


def source_of(script: Path) -> ScriptSource:
    """The parsed source of a script.

    Raises:
        LaunchRefused: It is not there, or no Python.
    """
    if script.is_dir():
        raise LaunchRefused(
            f"{script} is a folder; give the script in it that starts the job, or a "
            "command after `--`"
        )
    if not script.is_file():
        raise LaunchRefused(
            f"there is no script {script}; give a Python file, or a command after `--`"
        )
    if is_notebook(script):
        raise LaunchRefused(
            f"{script} is a notebook; make a script of it by `{conversion(script)}`"
        )
    return read_source(script)


def given_command(command: Sequence[str]) -> list[str]:
    """The user's own command with its program resolved, or several at `:::`.

    Raises:
        LaunchRefused: There is no such program.
    """
    if multi_command.BETWEEN in command:
        return _together("command", [*map(_found, multi_command.split(command))])
    return _found(command)


def _found(command: Sequence[str]) -> list[str]:
    variables, command = multi_command.settings(command)
    if not command:
        raise LaunchRefused("there are only variables: give a program after them")
    if variables:
        if path := variables.get("PYTHONPATH"):  # ours would be lost, and the probes
            variables["PYTHONPATH"] = f"{NEEDLE}{os.pathsep}{path}"
        named = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *named, *_found(command)]
    program = shutil.which(command[0])
    if program is None:
        raise LaunchRefused(
            f"there is no program {command[0]!r} on PATH; activate its environment, or "
            "give its path"
        )
    return [program, *command[1:]]


def script_in(command: Sequence[str]) -> str:
    """The Python files that a command runs, as shown in reports."""
    commands = multi_command.split(command)
    words = (word for one in commands for word in one[1:] if word.endswith(".py"))
    if multi_command.BETWEEN not in command:
        return next(words, Path(command[0]).name)
    return ", ".join(dict.fromkeys(words)) or f"{len(commands)} commands"


def starts_torchrun(command: Sequence[str]) -> bool:
    """Whether a command is torchrun, by any of its names."""
    words = command[:4]
    if multi_command.__file__ in words:
        return False
    return any(word in _TORCHRUNS or Path(word).name == "torchrun" for word in words)


def rank_count(command: Sequence[str], asked: int) -> int:
    """How many ranks our command for a script starts; 0: the script decides.

    Args:
        command: As `command_for` gives it.
        asked: How many it was asked for.
    """
    if multi_command.__file__ in command:
        return command.count(multi_command.BETWEEN) + 1
    known = starts_torchrun(command) or starts_horovodrun(command)
    return asked if known or starts_mpirun(command) else 0


def rank_marks(command: Sequence[str], ranks: int) -> list[str]:
    """What is put before the lines of each rank that has an output of its own.

    Args:
        command: As `command_for` gives it, or several commands of the user's.
        ranks: How many ranks a launcher starts; 0: their lines are left as they are.
    """
    if multi_command.__file__ in command:
        label = command[command.index(multi_command.__file__) + 1]
        count = command.count(multi_command.BETWEEN) + 1
    elif starts_torchrun(command) or starts_horovodrun(command):
        label, count = "rank", ranks
    else:
        return []
    return [f"[{label}{number}]:" for number in range(count)]


def _look_into(source: ScriptSource, arguments: Sequence[str]) -> Launcher:
    """How a script wants to be started, by what it sets, reads and takes.

    One that both sets and asks plays a rank if it starts others, and otherwise only has
    defaults for runs without a launcher. One that only may use Horovod has another way
    where there is none.
    """
    if starts_by_itself(source, arguments) or is_rays(source):
        return Launcher.PYTHON
    if is_data_parallel(source):
        return Launcher.PYTHON
    if is_mpis(source):
        return Launcher.MPI
    if is_horovods(source, arguments) and (
        requires_horovod(source) or not horovod_problem(framework_of(source))
    ):
        return Launcher.HOROVOD
    sets = bool(source.sets & LAUNCHER_VARIABLES)
    reads = bool(source.reads & LAUNCHER_VARIABLES)
    if source.spawns:
        alone = sets or not reads or gives_place(source, arguments)
        return Launcher.PYTHON if alone else Launcher.TORCHRUN
    if is_scheduled(source) or (not reads and takes_rank(source, arguments)):
        return Launcher.COMMANDS
    return Launcher.PYTHON if sets and not reads else Launcher.TORCHRUN


def _by_hand(
    source: ScriptSource, program: list[str], arguments: Sequence[str], ranks: int
) -> list[str]:
    """One command per rank, each told who it is as a person or a scheduler would."""
    meeting = meeting_point(source)
    commands = []
    for rank in range(ranks):
        variables = meeting | of_rank(source, rank, ranks)
        named = [f"{name}={value}" for name, value in variables.items()]
        extra = rank_arguments(source, arguments, rank, ranks, by_hand=True)
        commands.append([*named, *program, *extra, *arguments])
    return _together("rank", commands)


def _together(label: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """The command that runs these at once."""
    words = [word for command in commands for word in (multi_command.BETWEEN, *command)]
    return [sys.executable, multi_command.__file__, label, *words[1:]]
