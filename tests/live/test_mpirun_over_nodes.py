"""Ranks that mpirun starts on two hosts: the second has a supervisor of its own."""

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import remote_shell
from node_jobs import LIMIT_S, LOST_S, Hosts, autopsy_of, our

TRAINING = """
import os, sys, time

os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = sys.argv[1], "29533"

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10 if sys.argv[2] != "endless" else 10**6):
    dist.all_reduce(torch.ones(4))
    if step == 3 and sys.argv[2] == "sick" and dist.get_rank() == 3:
        dist.barrier()
    time.sleep(0.02)
dist.destroy_process_group()
"""

OF_NODE = "distdoctor.launch.node_supervisor"


@pytest.fixture
def shell(clean: Hosts, tmp_path: Path) -> Iterator[Path]:
    """What mpirun is to start its parts on the second host by."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: apt install openmpi-bin")
    program = [sys.executable, remote_shell.__file__]
    server = clean[1].start([*program, "serve", clean[1].address])
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    agent = tmp_path / "agent.sh"
    words = " ".join(program)
    agent.write_text(f'#!/bin/sh\nshift\nexec {words} {clean[1].address} "$@"\n')
    agent.chmod(0o755)
    yield agent
    clean[1].kill_by_name(f"{remote_shell.__file__} serve", of_module=False)
    server.kill()
    server.wait()
    server.stdout.close()


class Mpirun:
    """A check, or a recording, of a job that mpirun starts on both hosts."""

    def __init__(
        self,
        hosts: Hosts,
        shell: Path,
        folder: Path,
        how: str,
        *,
        recorded: bool = False,
    ) -> None:
        script = folder / "training.py"
        script.write_text(TRAINING)
        self.report, self.record = folder / "report.json", folder / "record"
        network = hosts[0].address.rpartition(".")[0] + ".0/24"
        options = ["--format", "json", "--output", str(self.report)]
        options += ["--record", str(self.record), "--budget", "100"]
        if recorded:
            options = ["--to", str(self.record)]
        self.head = hosts[0].start(
            [
                *our("record" if recorded else "check"),
                *options,
                *("--listen", hosts[0].wire, "--"),
                *("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "4"),
                *("--host", ",".join(f"{host.name}:2" for host in hosts)),
                *("--mca", "plm_rsh_agent", str(shell)),
                *("--mca", "oob_tcp_if_include", network),
                *("--mca", "btl_tcp_if_include", network),
                *("-x", "TMPDIR", "-x", "OMP_NUM_THREADS"),
                *(sys.executable, str(script), hosts[0].address, how),
            ],
            GLOO_SOCKET_IFNAME="wire0",
        )

    def under_way(self) -> None:
        """Wait until all ranks have come."""
        end = time.monotonic() + LIMIT_S
        while len([*self.record.glob("rank-*.journal")]) < 4:
            assert time.monotonic() < end, self.head.poll()
            time.sleep(0.1)

    def outcome(self, limit_s: float = LIMIT_S) -> tuple[int, dict[str, Any], str]:
        """Exit status, report, and what was printed."""
        try:
            said, _ = self.head.communicate(timeout=limit_s)
        finally:
            self.head.kill()
            self.head.communicate()
        report = json.loads(self.report.read_text()) if self.report.exists() else {}
        return self.head.returncode, report, said


@pytest.mark.parametrize("how", ["well", "sick"])
def test_a_job_of_mpirun_is_told_as_on_one_machine(
    how: str, clean: Hosts, shell: Path, tmp_path: Path
) -> None:
    status, report, said = Mpirun(clean, shell, tmp_path, how).outcome()
    assert report["verdict"] == how, said
    assert status == (how == "sick")
    if how == "sick":
        (finding,) = report["findings"]
        assert (finding["code"], finding["ranks"]) == ("DD108", [3]), said
        stacks = json.loads((tmp_path / "record" / "stacks.json").read_text())
        assert sorted(one["rank"] for one in stacks) == [0, 1, 2, 3]
        assert all(
            any(frame["file"].endswith("training.py") for frame in one["frames"])
            for one in stacks
        )


def test_a_supervisor_of_a_node_that_is_killed_leaves_nothing(
    clean: Hosts, shell: Path, tmp_path: Path
) -> None:
    check = Mpirun(clean, shell, tmp_path, "endless")
    check.under_way()
    pids = clean[1].said("pgrep", "-f", OF_NODE).split()
    assert len(pids) == 2
    clean[1].said("kill", f"-{int(signal.SIGKILL)}", pids[-1])
    status, report, said = check.outcome(LOST_S + 20)
    assert status, said
    assert report["verdict"] != "well"


def test_a_killed_head_leaves_nothing_on_the_other_node(
    clean: Hosts, shell: Path, tmp_path: Path
) -> None:
    check = Mpirun(clean, shell, tmp_path, "endless")
    check.under_way()
    assert clean[0].kill_by_name("distdoctor check") == 1
    check.outcome(LOST_S)
    end = time.monotonic() + LOST_S
    while clean[1].said("pgrep", "-f", OF_NODE) and time.monotonic() < end:
        time.sleep(0.2)


@pytest.mark.parametrize("how", ["well", "sick"])
def test_a_recorded_job_of_mpirun_is_told_as_on_one_machine(
    how: str, clean: Hosts, shell: Path, tmp_path: Path
) -> None:
    job = Mpirun(clean, shell, tmp_path, how, recorded=True)
    job.under_way()
    if how == "sick":  # it hangs until somebody ends it
        time.sleep(12)
        assert clean[0].kill_by_name("distdoctor record", signal.SIGTERM) == 1
    status, _, said = job.outcome()
    report = autopsy_of(tmp_path / "record")
    assert (report["verdict"], report["world_size"]) == (how, 4), said
    if how == "sick":
        assert status, said
        (finding,) = report["findings"]
        assert (finding["code"], finding["ranks"]) == ("DD108", [3]), said
    else:
        assert status == 0, said


def test_a_recorded_job_goes_on_when_what_forwards_it_is_killed(
    clean: Hosts, shell: Path, tmp_path: Path
) -> None:
    job = Mpirun(clean, shell, tmp_path, "endless", recorded=True)
    job.under_way()
    pids = clean[1].said("pgrep", "-f", OF_NODE).split()
    assert len(pids) == 2
    clean[1].said("kill", f"-{int(signal.SIGKILL)}", pids[-1])
    time.sleep(12)
    ranks = f"training.py {clean[0].address}"
    assert len(clean[1].said("pgrep", "-f", f"python.* .*{ranks}").split()) == 2
    assert clean[0].kill_by_name("distdoctor record", signal.SIGTERM) == 1
    status, _, said = job.outcome(LOST_S + 20)
    assert status, said
    report = autopsy_of(tmp_path / "record")
    assert (report["verdict"], report["findings"]) == ("unknown", []), said
    assert "its node hostb was lost" in json.dumps(report["not_examined"]), said
