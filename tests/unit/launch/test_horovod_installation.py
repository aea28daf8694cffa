"""Which Horovod a Python has: each state, and the sentence for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distdoctor.launch.horovod_installation import (
    Framework,
    HorovodInstallation,
    examine_horovod,
)

WORKING = """
def gloo_built(): return True
def mpi_built(): return 0
def size(): return 1
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose packages stand before those that are installed."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write(tmp_path / "torch" / "__init__.py", "__version__ = '2.13.0+cpu'")
    return tmp_path


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def install(place: Path, program: str = WORKING, built: str = "2.13.0+cpu") -> None:
    """Put a package there that looks like a Horovod for torch."""
    write(place / "horovod" / "__init__.py")
    write(place / "horovod" / "metadata.json", f'{{"pytorch": "{built}"}}')
    write(place / "horovod" / "torch" / "__init__.py", program)
    write(place / "horovod" / "torch" / "mpi_lib_v2.so")
    write(place / "horovod-9.9.dist-info" / "METADATA", "Name: horovod\nVersion: 9.9\n")


def examine(
    framework: Framework = Framework.TORCH, deadline_s: float = 60.0
) -> HorovodInstallation:
    return examine_horovod(sys.executable, framework, deadline_s)


def test_one_that_works_is_told_with_its_controllers(place: Path) -> None:
    install(place)
    found = examine()
    assert found.problem == ""
    assert found.told == "9.9, built for torch 2.13.0+cpu, with gloo"


def test_one_that_is_missing_is_built_by_a_command(tmp_path: Path) -> None:
    """Here is a Python that finds no Horovod, whatever is installed."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    found = examine_horovod(str(python), Framework.TENSORFLOW)
    assert found.problem == (
        f"Horovod is not installed in {python}; `distdoctor horovod build --tensorflow "
        f"--python {python}` builds and installs one that fits"
    )


def test_one_for_another_torch_is_told_from_a_broken_one(place: Path) -> None:
    failing = "raise ImportError('undefined symbol: _ZN5torch')"
    install(place, failing, built="2.12.0")
    found = examine()
    assert "was built for torch 2.12.0, and cannot be imported" in found.fault
    assert found.remedy == "distdoctor horovod build"
    install(place, failing)
    found = examine()
    assert "cannot be imported (ImportError: undefined symbol: _ZN5torch)" in (
        found.fault
    )
    assert found.remedy == "distdoctor horovod build --rebuild"


def test_one_that_works_with_another_torch_has_no_problem(place: Path) -> None:
    """Horovod itself warns, and goes on."""
    install(place, built="2.12.0")
    assert examine().problem == ""


def test_one_without_the_framework_is_said(place: Path) -> None:
    install(place)
    (place / "horovod" / "torch" / "mpi_lib_v2.so").unlink()
    assert "was built without torch" in examine().problem


def test_a_horovod_that_kills_its_process_is_said(place: Path) -> None:
    install(place, "import os; os.kill(os.getpid(), 11)")
    assert "(the process died of signal 11)" in examine().problem


def test_a_horovod_that_does_not_come_is_not_waited_for(place: Path) -> None:
    install(place, "import time; time.sleep(60)")
    found = examine(deadline_s=3.0)
    assert "(it did not end in 3 s)" in found.problem
    assert found.version == "9.9"


def test_a_torch_that_is_broken_is_not_horovods_fault(place: Path) -> None:
    install(place)
    write(place / "torch" / "__init__.py", "raise OSError('libc10.so')")
    found = examine()
    assert "torch cannot be imported in" in found.problem
    assert found.remedy == ""


def test_what_lies_in_its_folder_may_be_anything(place: Path) -> None:
    install(place)
    for text in ("[1]", "{", "\udcff"):
        path = place / "horovod" / "metadata.json"
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert examine().problem == ""


def test_a_python_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    found = examine_horovod(str(tmp_path / "python"))
    assert "cannot be started" in found.problem
