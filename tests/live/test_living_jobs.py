"""Jobs that distdoctor did not start, looked at while they hang, or work."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

JOB = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main

def spin():
    n = 0
    while True:
        n += 1

def read():
    with open("fifo") as file:
        file.read()

def alone(what, rank):
    if rank == 1:
        {"spin": spin, "read": read, "stop": lambda: time.sleep(600)}[what]()
    dist.all_reduce(torch.ones(4))

def circles(what, rank):
    dist.recv(torch.zeros(4), src=rank ^ 1)
    dist.send(torch.zeros(4), dst=rank ^ 1)

def differ(what, rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(4))

def work(what, rank):
    weights = torch.ones(200, 200)
    while True:
        for _ in range(20 * (rank + 1)):
            weights = (weights @ weights).clamp(-1, 1)
        dist.all_reduce(weights)

with worker_main():
    dist.init_process_group("gloo")
    dist.barrier()
    rank, what = dist.get_rank(), sys.argv[1]
    Path(f"ready.{rank}").touch()
    ways = {"circles": circles, "work": work, "differ": differ}
    ways.get(what, alone)(what, rank)
"""

RANKS = 4
_UP_S = 120


@contextmanager
def job(folder: Path, what: str, **variables: str) -> Iterator[psutil.Process]:
    """Such a job, with all its ranks where they will hang; ended at the end.

    Values of the variables that it gets may have `$RANK` in them.
    """
    (folder / "job.py").write_text(JOB)
    os.mkfifo(folder / "fifo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    own = " ".join(f"{name}={value}" for name, value in variables.items())
    start = f"{own} exec {sys.executable} job.py {what}"
    command += [f"--nproc-per-node={RANKS}", "--no-python", "sh", "-c", start]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    launcher = psutil.Process(started.pid)
    try:
        end = time.monotonic() + _UP_S
        while len([*folder.glob("ready.*")]) < RANKS:
            assert started.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.2)
        time.sleep(2)
        yield launcher
    finally:
        every = [*launcher.children(recursive=True), launcher]
        for process in every:
            process.kill()
        psutil.wait_procs(every, timeout=10)
        started.wait(timeout=10)


WITHOUT_PY_SPY = """
from distdoctor.cli import main
from distdoctor.postmortem.living import dump_taking
dump_taking.find_py_spy = lambda: None
main()
"""


def autopsy(*arguments: str, py_spy: bool = True) -> dict[str, Any]:
    program = ["-m", "distdoctor"] if py_spy else ["-c", WITHOUT_PY_SPY]
    command = [sys.executable, *program, "autopsy", "--format", "json"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, timeout=200, check=False
    )
    assert done.returncode in {1, 4}, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def found(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(one["code"], one["ranks"]) for one in report["findings"]]


@pytest.mark.parametrize("what", ["spin", "read"])
def test_a_rank_that_is_stuck_is_named_while_it_is(tmp_path: Path, what: str) -> None:
    with job(tmp_path, what) as launcher:
        rank = launcher.children()[-1]
        report = autopsy(str(rank.pid))
        assert all(one.is_running() for one in launcher.children())
    assert found(report) == [("DD204", [1])]
    assert report["findings"][0]["locations"][0]["function"] == what
    assert report["findings"][0]["certainty"] == "likely"
    assert report["world_size"] == RANKS
    assert {one["condition"] for one in report["processes"]} == {"waiting", "stuck"}


def test_a_rank_that_is_stopped_is_named_and_left_stopped(tmp_path: Path) -> None:
    with job(tmp_path, "stop") as launcher:
        ranks = {int(one.environ()["RANK"]): one for one in launcher.children()}
        ranks[1].send_signal(signal.SIGSTOP)
        report = autopsy(str(launcher.pid))
        assert ranks[1].status() == psutil.STATUS_STOPPED
    assert found(report) == [("DD204", [1])]
    assert "stopped by a signal" in report["findings"][0]["summary"]


def test_two_circles_of_messages_are_told_apart(tmp_path: Path) -> None:
    with job(tmp_path, "circles") as launcher:
        report = autopsy(str(launcher.pid), "--watch", "--at-most", "60")
    assert [code for code, _ in found(report)] == ["DD205", "DD205"]


def test_ranks_in_different_collectives_are_told(tmp_path: Path) -> None:
    with job(tmp_path, "differ") as launcher:
        report = autopsy(str(launcher.pid))
    assert found(report) == [("DD101", [1])]
    assert report["findings"][0]["certainty"] == "likely"
    assert report["findings"][0]["evidence"] == ["stack"]


def test_worker_servers_tell_stacks_and_calls_without_py_spy(tmp_path: Path) -> None:
    variables = {"TORCH_WORKER_SERVER_SOCKET": "w.$RANK", "TORCH_FR_BUFFER_SIZE": "99"}
    with job(tmp_path, "differ", **variables) as launcher:
        report = autopsy(str(launcher.pid), py_spy=False)
        assert all(one.is_running() for one in launcher.children())
    assert found(report) == [("DD101", [1])]
    (one,) = report["findings"]
    assert one["certainty"] == "proved"
    assert sorted(one["evidence"]) == ["dump", "stack"]
    assert one["locations"][0]["function"] == "differ"


def test_worker_servers_of_a_job_at_work_accuse_nobody(tmp_path: Path) -> None:
    variables = {"TORCH_WORKER_SERVER_SOCKET": "w.$RANK", "TORCH_FR_BUFFER_SIZE": "99"}
    with job(tmp_path, "work", **variables) as launcher:
        report = autopsy(str(launcher.pid), py_spy=False)
    assert found(report) == []
    assert report["verdict"] == "unknown"
    assert len(report["processes"]) == RANKS


def test_a_job_at_work_is_not_called_sick(tmp_path: Path) -> None:
    with job(tmp_path, "work") as launcher:
        report = autopsy(str(launcher.pid))
    assert found(report) == []
    assert report["verdict"] == "unknown"
    assert report["stacks"]
