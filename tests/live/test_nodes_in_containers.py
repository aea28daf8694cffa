"""Nodes in containers, whose processes have the same numbers: told as any others."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_jobs import (
    ENDLESS,
    LOST_S,
    Hosts,
    NodesCheck,
    our,
    wait_for_ranks,
)
from programs import FIXTURES, program
from real_runs import findings_of, is_near, named_lines
from two_hosts import Host

SOON_S = 30.0


def signal_first(host: Host, command: str, number: int) -> None:
    """Send a signal to a command of ours, the first process of its container."""
    begin = " ".join(our(command))
    for line in host.said("ps", "-ww", "-eo", "pid=,args=").splitlines():
        pid, _, arguments = line.strip().partition(" ")
        if arguments.startswith(begin):
            host.said("kill", f"-{int(number)}", pid)
            return
    pytest.fail(f"there is no {begin}")


def test_a_well_job_is_well(clean: Hosts, tmp_path: Path) -> None:
    path = FIXTURES / "patients" / "dd404_unaveraged_gradients.py"
    options = ["--record", str(tmp_path / "record")]
    check = NodesCheck(
        clean, tmp_path, str(path), "well", ranks=2, options=options, boxed=True
    )
    status, report, said = check.outcome()
    assert (status, report["verdict"], report["world_size"]) == (0, "well", 2), said
    assert check.joined.returncode == 0, said


@pytest.mark.parametrize("name", ["dd101_mismatched_collective", "dd203_circular_wait"])
def test_a_sick_patient_is_told_with_the_stacks_of_all_ranks(
    name: str, clean: Hosts, tmp_path: Path
) -> None:
    patient = program(FIXTURES / "patients" / f"{name}.py")
    record = tmp_path / "record"
    check = NodesCheck(
        *(clean, tmp_path, str(patient.path), "sick"),
        ranks=patient.ranks,
        options=["--record", str(record)],
        boxed=True,
    )
    status, report, said = check.outcome()
    (finding,) = findings_of(report, asked=patient.code)
    assert (status, finding["code"]) == (1, patient.code), said
    assert is_near(named_lines(finding), patient.lines_of(patient.code))
    stacks = json.loads((record / "stacks.json").read_text())
    assert {sample["rank"] for sample in stacks} == {*range(patient.ranks)}, said


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script that trains without end."""
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    return str(path)


@pytest.fixture
def endless(clean: Hosts, tmp_path: Path, script: str) -> Iterator[NodesCheck]:
    """A job of a rank in each of two containers."""
    record = tmp_path / "record"
    options = ["--record", str(record)]
    check = NodesCheck(clean, tmp_path, script, ranks=2, options=options, boxed=True)
    wait_for_ranks(record, 2)
    yield check
    check.close()


def test_a_container_whose_first_process_is_killed_is_told_as_lost(
    endless: NodesCheck, clean: Hosts
) -> None:
    signal_first(clean[1], "join", signal.SIGKILL)
    status, report, said = endless.outcome(LOST_S)
    assert status == {"unknown": 4, "sick": 1}[report["verdict"]], said
    assert "its node hostb was lost" in json.dumps(report["not_examined"]), said


def test_a_container_that_is_asked_to_end_ends_and_is_not_well(
    endless: NodesCheck, clean: Hosts
) -> None:
    signal_first(clean[1], "join", signal.SIGTERM)
    status, report, said = endless.outcome(LOST_S)
    assert endless.joined.returncode
    assert status == {"unknown": 4, "sick": 1}[report["verdict"]], said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_check_that_is_the_first_process_of_its_container_is_asked_to_end(
    number: int, clean: Hosts, tmp_path: Path, script: str
) -> None:
    host, record = clean[0], tmp_path / "record"
    check = host.start_boxed([*our("check"), "--record", str(record), script])
    try:
        wait_for_ranks(record, 2)
        signal_first(host, "check", number)
        said, _ = check.communicate(timeout=SOON_S)
    finally:
        check.kill()
        check.wait()
    assert check.returncode == 128 + number, said
    assert "the run was interrupted" in " ".join(said.split()), said  # lines wrap
