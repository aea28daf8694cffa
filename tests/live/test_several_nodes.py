"""Jobs over several nodes: the same verdicts as on one, and nothing left on any."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import FIXTURES, Program, program
from real_runs import findings_of, is_near, named_lines
from two_hosts import Host, two_hosts

TOKEN = "0123456789abcdef" * 4
PORT = 4711
LIMIT_S = 240.0
LOST_S = 45.0  # the head waits 10, and then for what still answers

PATIENTS = [
    "dd101_mismatched_collective",
    "dd102_mismatched_shape",
    "dd108_skipped_collective",
    "dd201_waits_for_finished_rank",
    "dd202_waits_for_dead_rank",
    "dd203_circular_wait",
    "dd301_same_samples",
    "dd404_unaveraged_gradients",
]

Hosts = tuple[Host, Host]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts that see each other, and none of each other's processes."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip", "ps"))):
        pytest.skip("no unshare, nsenter, ip and ps: apt install util-linux iproute2")
    spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"]
    if subprocess.run(spaces, capture_output=True, check=False).returncode:
        pytest.skip("namespaces of a network may not be made here: run as root")
    with two_hosts(tmp_path_factory.mktemp("hosts")) as pair:
        yield pair


@pytest.fixture
def clean(hosts: Hosts) -> Iterator[Hosts]:
    """The two hosts, on which nothing may be left in the end."""
    yield hosts
    left = [host.left_over() for host in hosts]
    for host in hosts:
        host.end_all()
    assert left == [[], []]


def our(command: str) -> list[str]:
    return [sys.executable, "-m", "distdoctor", command]


def torchrun(hosts: Hosts, node: int, ranks: int, *script: str) -> list[str]:
    meeting = ["--master-addr", hosts[0].address, "--master-port", "29511"]
    place = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *place, *meeting, *script]


class Check:
    """A check that has been started on the first host, and joined on the second."""

    def __init__(self, hosts: Hosts, folder: Path, *script: str, ranks: int) -> None:
        self.report = folder / "report.json"
        self.joined = hosts[1].start(
            [
                *our("join"),
                f"{hosts[0].address}:{PORT}",
                *("--", *torchrun(hosts, 1, ranks // 2, *script)),
            ],
            DISTDOCTOR_TOKEN=TOKEN,
        )
        options = ["--format", "json", "--output", str(self.report), "--budget", "200"]
        self.head = hosts[0].start(
            [
                *our("check"),
                *(*options, "--nodes", "2", "--listen", f"{hosts[0].address}:{PORT}"),
                *("--", *torchrun(hosts, 0, ranks - ranks // 2, *script)),
            ],
            DISTDOCTOR_TOKEN=TOKEN,
        )

    def outcome(self, limit_s: float = LIMIT_S) -> tuple[int, dict[str, Any], str]:
        """Exit status of the head, its report, and what was printed on both."""
        try:
            said, _ = self.head.communicate(timeout=limit_s)
        finally:
            self.head.kill()
        try:
            more, _ = self.joined.communicate(timeout=LOST_S)
        finally:
            self.joined.kill()
        report = json.loads(self.report.read_text()) if self.report.exists() else {}
        return self.head.returncode, report, f"{said}\n--- joined:\n{more}"


def assert_is_told(patient: Program, report: dict[str, Any], said: str) -> None:
    assert report["verdict"] == patient.verdict, said
    (finding,) = findings_of(report, asked=patient.code)
    assert finding["code"] == patient.code, said
    assert finding["ranks"] == list(patient.culprits)
    named, lines = named_lines(finding), patient.lines_of(patient.code)
    assert is_near(named, lines), (named, lines)


@pytest.mark.parametrize("name", PATIENTS)
def test_a_sick_patient_on_two_nodes_is_told_as_on_one(
    name: str, clean: Hosts, tmp_path: Path
) -> None:
    patient = program(FIXTURES / "patients" / f"{name}.py")
    check = Check(clean, tmp_path, str(patient.path), "sick", ranks=patient.ranks)
    status, report, said = check.outcome()
    assert_is_told(patient, report, said)
    assert status == patient.status


def test_a_well_job_on_two_nodes_is_well(clean: Hosts, tmp_path: Path) -> None:
    path = FIXTURES / "patients" / "dd404_unaveraged_gradients.py"
    ranks = program(path).ranks
    status, report, said = Check(
        clean, tmp_path, str(path), "well", ranks=ranks
    ).outcome()
    assert (status, report["verdict"]) == (0, "well"), said
    assert report["run"]["world_size"] == ranks
