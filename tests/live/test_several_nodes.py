"""Jobs over several nodes: the same verdicts as on one, and nothing left on any."""

from pathlib import Path
from typing import Any

import pytest
from node_jobs import Hosts, NodesCheck
from programs import FIXTURES, Program, program
from real_runs import findings_of, is_near, named_lines

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
    check = NodesCheck(clean, tmp_path, str(patient.path), "sick", ranks=patient.ranks)
    status, report, said = check.outcome()
    assert_is_told(patient, report, said)
    assert status == patient.status


def test_a_well_job_on_two_nodes_is_well(clean: Hosts, tmp_path: Path) -> None:
    path = FIXTURES / "patients" / "dd404_unaveraged_gradients.py"
    ranks = program(path).ranks
    status, report, said = NodesCheck(
        clean, tmp_path, str(path), "well", ranks=ranks
    ).outcome()
    assert (status, report["verdict"]) == (0, "well"), said
    assert report["world_size"] == ranks
