"""Jobs of TensorFlow with Horovod, in an environment of their own, without torch."""

from pathlib import Path

import pytest
from horovod_jobs import horovodrun, needs_tensorflow
from programs import FIXTURES, ROOT, Program, program
from real_runs import Checked, check, findings_of, is_near, named_lines

pytestmark = needs_tensorflow

PATIENTS = [program(path) for path in sorted((FIXTURES / "tensorflow").glob("*.py"))]

each_patient = pytest.mark.parametrize("patient", PATIENTS, ids=lambda one: one.name)

JOBS = ["horovod_tensorflow_loop.py", "horovod_keras.py"]


def started(folder: Path, python: str, script: Path, *arguments: str) -> Checked:
    command = horovodrun(2, str(script), *arguments, python=python)
    return check(folder, "--", *command)


@each_patient
def test_a_patient_of_tensorflow_is_diagnosed(
    patient: Program, tensorflow_python: str, tmp_path: Path
) -> None:
    state = ["sick"] if patient.has_twin else []
    status, report, output = started(tmp_path, tensorflow_python, patient.path, *state)
    found = findings_of(report)
    assert tuple(one["code"] for one in found) == patient.findings, output
    assert (status, report["verdict"]) == (patient.status, patient.verdict), output
    for finding in found:
        assert is_near(named_lines(finding), patient.culprit_lines[""])


@pytest.mark.parametrize(
    "patient", [one for one in PATIENTS if one.has_twin], ids=lambda one: one.name
)
def test_the_twin_of_a_patient_of_tensorflow_is_well(
    patient: Program, tensorflow_python: str, tmp_path: Path
) -> None:
    status, report, output = started(tmp_path, tensorflow_python, patient.path, "well")
    assert (status, report["verdict"], findings_of(report)) == (0, "well", []), output


@pytest.mark.parametrize("job", JOBS)
def test_a_reference_job_of_tensorflow_is_well(
    job: str, tensorflow_python: str, tmp_path: Path
) -> None:
    script = ROOT / "reference_jobs" / job
    status, report, output = started(tmp_path, tensorflow_python, script)
    assert (status, report["verdict"], findings_of(report)) == (0, "well", []), output
