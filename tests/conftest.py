"""What several test modules need."""

import gc
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from by_rule.running import Runner
from command_box import Box
from horovod_jobs import TENSORFLOW_VARIABLE, installed, tensorflow_problem
from hypothesis import settings

from distdoctor.catalogue import every_check
from distdoctor.probes import registry

every_check()  # each brings the words of its disease, for which tests ask

# How long an example takes is the machine's affair.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# PyTorch's store asks the name server for the name of each rank that connects, and a
# lost question is asked again after 5 s: whether one is lost is no affair of a test's.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")  # resolv.conf(5)


@pytest.fixture(autouse=True)
def probes_as_new() -> Iterator[None]:
    """What probes learnt in a test, they forget: they are of the whole process."""
    yield
    registry.reset()


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A folder to run the command in; no process of it may be left at the end."""
    box = Box(tmp_path)
    yield box
    left = box.marked()
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    assert not left


@pytest.fixture(scope="session")
def forked() -> Iterator[Runner]:
    """Runs distdoctor, and the ranks, as forks of a process in which torch is loaded.

    A run takes a fifth of the time then.
    """
    runner = Runner(Path(sys.executable).with_name("distdoctor"))
    yield runner
    runner.close()


@pytest.fixture
def horovod_is_here() -> None:
    """Skips the test where no job with Horovod and torch can be run."""
    if problem := installed().problem:
        pytest.skip(problem)


@pytest.fixture
def mpi_is_here(horovod_is_here: None) -> None:  # noqa: ARG001 - asked first
    """Skips the test where the ranks of Horovod cannot meet by MPI."""
    if "mpi" not in installed().controllers or shutil.which("mpirun") is None:
        pytest.skip("Horovod is built without MPI here, or there is no mpirun")


@pytest.fixture
def tensorflow_python() -> str:
    """A Python with TensorFlow and a Horovod for it; skips the test without one."""
    if problem := tensorflow_problem():
        pytest.skip(problem)
    return os.environ[TENSORFLOW_VARIABLE]


@pytest.fixture(autouse=True)
def nothing_was_compiled() -> Iterator[None]:
    """Probes do less in a process that used torch.compile: no test leaves that mark."""
    yield
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        dynamo.counters.clear()


def pytest_collection_finish() -> None:
    """Keep what was collected out of each look at all living objects.

    Thousands of tests, and the modules they import, are most of what the garbage
    collector would go through, and the probes that look for objects of a kind.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start ranks come last, so that what fails at once is seen at once."""
    items.sort(key=lambda item: item.get_closest_marker("live") is not None)
