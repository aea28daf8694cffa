"""What a Horovod is built for: the name of its slot, and what prevents it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdoctor.errors import HorovodUnavailable
from distdoctor.horovod_build.build_target import BuildTarget, find_target
from distdoctor.launch.horovod_installation import Framework

TARGET = BuildTarget(
    python="/usr/bin/python3",
    python_version="3.11",
    machine="x86_64",
    headers="/usr/include/python3.11",
    framework=Framework.TORCH,
    framework_version="2.13.0+cpu",
    mpi=False,
    settings={},
)


def program(folder: Path, text: str, name: str = "python") -> str:
    """A program of ours in the place of another."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_slot_says_what_its_wheel_is_for() -> None:
    assert TARGET.slot == "horovod0.28.1-torch2.13.0+cpu-py311-x86_64-gloo"


@pytest.mark.parametrize(
    "change",
    [
        {"python_version": "3.12"},
        {"machine": "aarch64"},
        {"framework": Framework.TENSORFLOW},
        {"framework_version": "2.13.0+cu130"},
        {"mpi": True},
        {"settings": {"HOROVOD_GPU_OPERATIONS": "NCCL"}},
    ],
    ids=str,
)
def test_what_changes_the_build_changes_the_slot(change: dict[str, Any]) -> None:
    assert replace(TARGET, **change).slot != TARGET.slot


def test_where_python_lies_does_not_change_the_slot() -> None:
    elsewhere = replace(TARGET, python="/opt/python", headers="/opt/include")
    assert elsewhere.slot == TARGET.slot


def test_a_strange_release_stays_in_the_folder() -> None:
    strange = replace(TARGET, framework_version="../../1 2\n")
    assert Path(strange.slot).name == strange.slot
    assert "\n" not in strange.slot


def test_this_python_has_its_torch() -> None:
    import torch

    found = find_target(sys.executable, Framework.TORCH, mpi=False, environment={})
    assert found.framework_version == torch.__version__
    assert found.python == sys.executable  # and not what the link leads to
    assert found.controllers == "gloo"


def test_only_variables_that_change_the_build_are_settings() -> None:
    variables = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_RANK": "1",
        "HOROVOD_CUDA_HOME": "",
        "OTHER": "1",
    }
    found = find_target(sys.executable, Framework.TORCH, environment=variables)
    assert found.settings == {"HOROVOD_GPU_OPERATIONS": "NCCL"}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ('FACTS{"framework": "", "pip": true}', "there is no torch in"),
        ('FACTS{"framework": "2.13.0", "pip": false}', "has no pip"),
        ("nothing", "cannot say which torch it has"),
    ],
)
def test_what_a_python_lacks_is_said(
    answer: str, sentence: str, tmp_path: Path
) -> None:
    python = program(tmp_path, f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(HorovodUnavailable, match=sentence):
        find_target(python, Framework.TORCH)


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(HorovodUnavailable, match="no Python"):
        find_target(str(tmp_path / "python"), Framework.TORCH)
    broken = program(tmp_path, "#!/no/such/interpreter\n")
    with pytest.raises(HorovodUnavailable, match="cannot be started"):
        find_target(broken, Framework.TORCH)


def test_a_tensorflow_that_reduces_nothing_is_warned_of() -> None:
    tensorflow = replace(TARGET, framework=Framework.TENSORFLOW)
    assert "tf_keras" in replace(tensorflow, framework_version="2.16.2").caution
    assert replace(tensorflow, framework_version="2.15.1").caution == ""
    assert replace(TARGET, framework_version="2.16.0").caution == ""
