"""Systems of parallelism: the job of each is well, its patients are diagnosed."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from programs import Program
from real_runs import check_program
from systems import System, accused, check_job, compare_job, missed, systems

SYSTEMS = systems()

each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda one: one.name)

each_patient = pytest.mark.parametrize(
    ("system", "patient"),
    [
        pytest.param(system, patient, id=patient.name)
        for system in SYSTEMS
        for patient in system.patients
    ],
)


def skip_where_it_lacks(system: System) -> None:
    if lacking := system.lacking():
        pytest.skip(f"not installed here: {', '.join(lacking)}")


@each_system
def test_its_job_is_well_and_computes_what_one_rank_does(
    system: System, forked: Runner, tmp_path: Path
) -> None:
    """The latter where one rank can train on the same samples."""
    skip_where_it_lacks(system)
    compares = system.reference is not None
    checked = (compare_job if compares else check_job)(forked, tmp_path, system)
    assert not accused(checked)
    assert checked[1]["run"]["steps"] > 0
    assert not compares or checked[1]["compared"]["same"], checked[2]


@each_patient
def test_its_patient_is_diagnosed(
    system: System, patient: Program, forked: Runner, tmp_path: Path
) -> None:
    skip_where_it_lacks(system)
    assert not missed(patient, check_program(forked, tmp_path, patient, "sick"))


@each_patient
def test_the_twin_is_well(
    system: System, patient: Program, forked: Runner, tmp_path: Path
) -> None:
    skip_where_it_lacks(system)
    checked = check_program(forked, tmp_path, patient, "well")
    assert not accused(checked, patient.healthy_verdict)
