"""Starts a script's ranks by horovodrun, and tells what can be started.

It is run as a module of our own Python, so that the ranks have the same Horovod as it.
They meet by Gloo over the loopback interface.

Source: Horovod 0.28.1, runner/launch.py.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from distdoctor.errors import LaunchRefused
from distdoctor.launch.horovod_installation import Framework, examine_horovod

HOROVODRUN = "horovod.runner.launch"
"""The module behind `horovodrun`."""

_RELEASE_IN_METADATA = {Framework.TORCH: "pytorch", Framework.TENSORFLOW: "tensorflow"}
_LIBRARY = {Framework.TORCH: "mpi_lib_v2.*.so", Framework.TENSORFLOW: "mpi_lib.*.so"}


def horovodrun(program: Sequence[str], ranks: int) -> list[str]:
    """The command that starts a program on ranks of Horovod on this machine.

    Args:
        program: A Python, a script and its arguments.
        ranks: How many.
    """
    return [
        # -P: as the program horovodrun, it finds no module in the working directory.
        *(sys.executable, "-P", "-m", HOROVODRUN, "-np", str(ranks)),
        *("--gloo", "--network-interface", "lo"),
        "--disable-cache",  # of its checks of hosts, a file in the user's home
        *program,
    ]


def starts_horovodrun(command: Sequence[str]) -> bool:
    """Whether a command is horovodrun, by any of its names."""
    words = list(command[:4])
    return HOROVODRUN in words or any(Path(word).name == "horovodrun" for word in words)


def horovod_problem(framework: Framework) -> str:
    """Why our Python cannot run ranks of Horovod, in one sentence; empty: it can.

    To import a framework takes seconds. So it is only done where the releases that are
    written down do not agree already.

    Args:
        framework: What the ranks use Horovod with.
    """
    if _was_built_for_what_is_there(framework):
        return ""
    return examine_horovod(sys.executable, framework).problem


def require_horovod(framework: Framework) -> None:
    """Raise unless our Python can run ranks of Horovod.

    Args:
        framework: What they use Horovod with.

    Raises:
        LaunchRefused: It cannot; the text names the command that helps.
    """
    if problem := horovod_problem(framework):
        raise LaunchRefused(problem)


def _was_built_for_what_is_there(framework: Framework) -> bool:
    try:
        spec = importlib.util.find_spec("horovod")
        if spec is None or not spec.submodule_search_locations:
            return False
        folder = Path(spec.submodule_search_locations[0])
        if not any((folder / framework).glob(_LIBRARY[framework])):
            return False
        built = json.loads((folder / "metadata.json").read_text())
        from importlib.metadata import version  # slow, and few jobs get here

        there = version(framework)
        return bool(built.get(_RELEASE_IN_METADATA[framework]) == there)
    except (OSError, ValueError, AttributeError, ImportError):
        return False
