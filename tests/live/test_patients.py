"""Each check against its patient, sick and well; some started as a user does."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from launchers import skip_where_it_cannot_run
from programs import FIXTURES, Program, program
from real_runs import check, check_program, findings_of, is_near, named_lines

from distdoctor.catalogue import every_check
from distdoctor.model.declare import Check

AS_A_USER_DOES = {
    "environment": "DD313",
    "gpu_emulation": "DD118",
    "gradients": "DD404",
    "groups": "DD109",
    "memory": "DD413",
    "metrics": "DD311",
    "optimizer_step": "DD417",
    "rendezvous": "DD612",
    "replicas": "DD401",
    "rng": "DD309",
}
"""By kind of probe, a patient whose interpreters start with the probes in place.

The other kinds are met so by listings of `fixtures/textbook` and by `test_cli.py`.
"""

each_check = pytest.mark.parametrize(
    "doctor",
    [  # some diseases only leavings of a job show
        one
        for one in every_check()
        if (FIXTURES / "patients" / f"{one.name}.py").exists()
    ],
    ids=lambda one: one.code,
)


def patient_of(doctor: Check) -> Program:
    return program(FIXTURES / "patients" / f"{doctor.name}.py")


@each_check
def test_a_sick_patient_is_diagnosed(
    doctor: Check, forked: Runner, tmp_path: Path
) -> None:
    patient = patient_of(doctor)
    skip_where_it_cannot_run(patient.path)
    started = doctor.code in AS_A_USER_DOES.values()
    checked = check_program(forked, tmp_path, patient, "sick", started=started)
    status, report, output = checked
    assert (status, report["verdict"]) == (patient.status, patient.verdict), output
    (finding,) = findings_of(report, asked=doctor.code)
    assert (finding["code"], finding["severity"]) == (doctor.code, doctor.severity)
    assert finding["ranks"] == list(patient.culprits)
    named, lines = named_lines(finding), patient.lines_of(doctor.code)
    assert is_near(named, lines), (named, lines)


@each_check
def test_its_healthy_twin_is_well(
    doctor: Check, forked: Runner, tmp_path: Path
) -> None:
    patient = patient_of(doctor)
    skip_where_it_cannot_run(patient.path)
    status, report, output = check_program(forked, tmp_path, patient, "well")
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
    well = report["checks"]["well"] + [one["code"] for one in report["findings"]]
    assert doctor.code in well


ON_NCCL = [f"DD{n}" for n in (101, 102, 103, 104, 105, 107, 108, 201, 202)]
"""What NCCL meets as gloo does.

Ranks share a GPU: NCCL 2.30.3 allows that, and older ones if they take each rank for
one of another host (NCCL_HOSTID).
"""


TOLD_ON_NCCL = {"DD107": "DD102"}
"""By code, what is told instead: there the first call of a group sets its communicator
up, and blocks; so the calls behind it are not made, and their order is not seen."""


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no GPU")
@pytest.mark.parametrize("state", ["sick", "well"])
@pytest.mark.parametrize(
    "doctor",
    [check for check in every_check() if check.code in ON_NCCL],
    ids=lambda check: check.code,
)
def test_a_patient_on_nccl(
    doctor: Check, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    original = patient_of(doctor)
    patient = tmp_path / original.path.name
    on_gloo = 'dist.init_process_group("gloo")'
    on_nccl = (
        'import os; os.environ["NCCL_HOSTID"] = os.environ["RANK"]; '
        'torch.set_default_device("cuda"); dist.init_process_group("nccl")'
    )
    text = original.path.read_text().replace("Generator()", 'Generator("cuda")')
    assert on_gloo in text
    patient.write_text(text.replace(on_gloo, on_nccl))
    ranks = str(original.ranks)
    status, report, output = check(tmp_path, str(patient), "-n", ranks, "--", state)
    # As on hosts of their own, ranks meet through the network.
    codes = [one["code"] for one in findings_of(report) if one["code"] != "DD602"]
    ill = state == "sick"
    told = TOLD_ON_NCCL.get(doctor.code, doctor.code)
    assert (status, codes) == ((1, [told]) if ill else (0, [])), output
    assert report["run"]["backend"].endswith("nccl")
