"""NCCL's log is asked for where ranks use NCCL, and what users set stays theirs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.journal.environment import FOLDER_VARIABLE, NCCL_LOG_VARIABLE
from distdoctor.launch.job import Job, plan_of
from distdoctor.probes import gpu_emulation
from distdoctor.probes.environment import nccl_debug
from distdoctor.probes.environment.nccl_debug import FILE, LEVEL, SUBSYSTEMS, expanded
from distdoctor.probes.recorder import RECORDER


@pytest.fixture(autouse=True)
def on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """A rank with a GPU, whose record is `tmp_path`; what it notes there."""
    notes: list[dict[str, object]] = []
    for name in (LEVEL, FILE, SUBSYSTEMS, "NCCL_CONF_FILE"):
        monkeypatch.setenv(name, "")  # so that it is taken away again behind the test
        monkeypatch.delenv(name)
    monkeypatch.setenv(NCCL_LOG_VARIABLE, "1")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(gpu_emulation, "is_in_place", lambda: False)
    monkeypatch.setattr(RECORDER, "append", lambda _, note: notes.append(note))
    return notes


def test_each_process_gets_a_file_of_its_own_in_the_record(tmp_path: Path) -> None:
    nccl_debug.install()
    assert os.environ[LEVEL] == "INFO"
    assert "COLL" not in os.environ[SUBSYSTEMS]
    host = socket.gethostname().partition(".")[0]
    path = tmp_path / "nccl" / f"{host}.{os.getpid()}.log"
    assert expanded(os.environ[FILE]) == str(path)
    assert path.parent.is_dir()


@pytest.mark.parametrize("name", [LEVEL, SUBSYSTEMS, FILE])
def test_what_the_user_set_stays(
    name: str, monkeypatch: pytest.MonkeyPatch, on_gpus: list[dict[str, object]]
) -> None:
    monkeypatch.setenv(name, "mine.%p")
    nccl_debug.install()
    assert os.environ[name] == "mine.%p"
    assert {LEVEL, SUBSYSTEMS, FILE} & os.environ.keys() == {name}
    path = str(Path(f"mine.{os.getpid()}").absolute())
    noted = [{"path": path}] if name == FILE else []
    assert on_gpus == noted


@pytest.mark.parametrize("path", ["/dev/stdout", "/proc/self/fd/2", "/x/../dev/tty"])
def test_where_nothing_can_be_read_is_not_noted(
    path: str, monkeypatch: pytest.MonkeyPatch, on_gpus: list[dict[str, object]]
) -> None:
    monkeypatch.setenv(FILE, path)
    nccl_debug.install()
    assert not on_gpus


def test_a_user_without_a_home_gets_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # of no user
    nccl_debug.install()
    assert os.environ[LEVEL] == "INFO"


def test_settings_in_nccls_own_file_stay(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".nccl.conf").write_text("# mine\nNCCL_DEBUG=WARN\n")
    nccl_debug.install()
    assert LEVEL not in os.environ


@pytest.mark.parametrize("lacking", ["wish", "gpu", "emulation"])
def test_nothing_is_set_where_nccl_is_not_used(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "wish":
        monkeypatch.delenv(NCCL_LOG_VARIABLE)
    elif lacking == "gpu":
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    else:
        monkeypatch.setattr(gpu_emulation, "is_in_place", lambda: True)
    nccl_debug.install()
    assert LEVEL not in os.environ
    assert not list(tmp_path.iterdir())


@given(st.text(st.sampled_from("ab/%"), max_size=12))
def test_a_name_that_was_escaped_is_itself(name: str) -> None:
    assert expanded(name.replace("%", "%%")) == name


def test_a_plan_tells_ranks_only_if_the_log_is_wanted(tmp_path: Path) -> None:
    job = Job(command=["python", "x.py"], name="x.py", ranks=2, own=True)
    assert plan_of(job, tmp_path, nccl_log=True).environment[NCCL_LOG_VARIABLE] == "1"
    assert NCCL_LOG_VARIABLE not in plan_of(job, tmp_path).environment
