"""What tests need that start Horovod jobs: whether they can, and the command.

Nothing here is called `horovod`: this folder stands on the path of the tests.

    from horovod_jobs import horovodrun, needs_horovod

    @needs_horovod
    def test_a_job() -> None:
        subprocess.run(horovodrun(2, "train.py"), timeout=120, check=True)
"""

from __future__ import annotations

import functools
import os
import sys

import pytest

from distdoctor.launch.horovod_installation import (
    Framework,
    HorovodInstallation,
    examine_horovod,
)

TENSORFLOW_VARIABLE = "DISTDOCTOR_TENSORFLOW_PYTHON"
"""Environment variable: a Python that has TensorFlow, and Horovod for it."""

needs_horovod = pytest.mark.usefixtures("horovod_is_here")
"""Mark of a test that needs Horovod for torch; skipped with the reason without it."""

needs_mpi = pytest.mark.usefixtures("mpi_is_here")
"""Mark of a test that needs Horovod for torch with MPI, and mpirun."""

needs_tensorflow = pytest.mark.usefixtures("tensorflow_python")
"""Mark of a test that needs Horovod for TensorFlow; the fixture is its Python."""

FOR_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Variables without which Open MPI starts nothing for root, as in a container."""


@functools.cache
def installed(
    python: str = sys.executable, framework: str = "torch"
) -> HorovodInstallation:
    """The Horovod of a Python; it is asked once, and that takes some seconds."""
    return examine_horovod(python, Framework(framework))


def tensorflow_problem() -> str:
    """Why no job with TensorFlow can be run; empty: it can."""
    python = os.environ.get(TENSORFLOW_VARIABLE)
    if not python:
        return f"{TENSORFLOW_VARIABLE} names no Python with TensorFlow and Horovod"
    return installed(python, "tensorflow").problem


def horovodrun(ranks: int, *program: str, python: str = sys.executable) -> list[str]:
    """The command that starts a program on ranks that meet by Gloo on this machine.

    Args:
        ranks: How many.
        program: A script and its arguments.
        python: That runs it.
    """
    launcher = [python, "-m", "horovod.runner.launch", "-np", str(ranks)]
    return [*launcher, "--gloo", "--network-interface", "lo", python, *program]
