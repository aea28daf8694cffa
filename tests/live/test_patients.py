"""Checks against their patients and healthy jobs, by the real command; near misses."""

import re
import sys
from pathlib import Path

import pytest
from by_rule.running import Runner
from real_runs import (
    ROOT,
    check,
    check_forked,
    constant,
    culprit_lines,
    findings_of,
    is_near,
    named_lines,
)

from distdoctor.catalogue import every_check
from distdoctor.model.declare import Check
from distdoctor.model.findings import Severity

pytestmark = pytest.mark.live


def expected(doctor: Check, patient: Path) -> tuple[int, str]:
    """Exit status and verdict for a sick patient; advice leaves a job well."""
    if re.search(r"^VERDICT = \"unknown\"$", patient.read_text(), re.MULTILINE):
        return 4, "unknown"
    ill = doctor.severity is Severity.ERROR
    return (1, "sick") if ill else (0, "well")


@pytest.mark.parametrize("doctor", every_check(), ids=lambda check: check.code)
def test_a_sick_patient_is_diagnosed(doctor: Check, tmp_path: Path) -> None:
    patient = ROOT / "fixtures" / "patients" / f"{doctor.name}.py"
    ranks = str(constant(patient, "RANKS"))
    status, report, said = check(tmp_path, str(patient), "-n", ranks, "--", "sick")
    assert (status, report["verdict"]) == expected(doctor, patient), said
    (finding,) = findings_of(report, asked=doctor.code)
    assert (finding["code"], finding["severity"]) == (doctor.code, doctor.severity)
    assert finding["ranks"] == constant(patient, "CULPRITS")
    named, lines = named_lines(finding), culprit_lines(patient)
    assert is_near(named, lines), (named, lines)


@pytest.mark.parametrize("doctor", every_check(), ids=lambda check: check.code)
def test_its_healthy_twin_is_well(doctor: Check, tmp_path: Path) -> None:
    patient = ROOT / "fixtures" / "patients" / f"{doctor.name}.py"
    ranks = str(constant(patient, "RANKS"))
    status, report, said = check(tmp_path, str(patient), "-n", ranks, "--", "well")
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), said
    well = report["checks"]["well"] + [one["code"] for one in report["findings"]]
    assert doctor.code in well


ON_NCCL = [f"DD{n}" for n in (101, 102, 103, 104, 105, 107, 108, 201, 202)]
"""What NCCL meets as gloo does; two ranks can share a GPU from NCCL 2.30.3 on."""


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
    original = ROOT / "fixtures" / "patients" / f"{doctor.name}.py"
    patient = tmp_path / original.name
    on_gloo = 'dist.init_process_group("gloo")'
    on_nccl = 'torch.set_default_device("cuda"); dist.init_process_group("nccl")'
    assert on_gloo in original.read_text()
    patient.write_text(original.read_text().replace(on_gloo, on_nccl))
    ranks = str(constant(patient, "RANKS"))
    status, report, said = check(tmp_path, str(patient), "-n", ranks, "--", state)
    codes = [one["code"] for one in findings_of(report)]
    ill = state == "sick"
    assert (status, codes) == ((1, [doctor.code]) if ill else (0, [])), said
    assert report["run"]["backend"].endswith("nccl")


JOBS = [
    ("ddp_training.py", "--epochs 2 --workers 0"),
    ("ddp_training.py", "--epochs 1 --checkpointing --no-amp --workers 1"),
    ("spawn_training.py", ""),
    ("device_mesh.py", ""),
    ("device_mesh.py", "--tp 1 --fsdp"),
    ("fsdp_training.py", ""),
    ("pipeline.py", ""),
    ("pipeline.py", "--schedule gpipe"),
    ("cuda_training.py", ""),
    ("amp_accumulation.py", ""),
    ("amp_accumulation.py", "--precision bf16 --epochs 2 --workers 1"),
    ("token_accumulation.py", ""),
    ("trust_ratio.py", "--optimizer lars"),
    ("trust_ratio.py", "--optimizer lamb"),
    ("checkpointed.py", ""),
    ("checkpointed.py", "--reentrant"),
]


@pytest.mark.parametrize(("job", "options"), JOBS)
def test_a_reference_job_is_well(job: str, options: str, tmp_path: Path) -> None:
    script = ROOT / "reference_jobs" / job
    status, report, said = check(tmp_path, str(script), "--", *options.split())
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), said
    assert report["world_size"] == 2
    assert report["run"]["steps"] > 0
    assert not list((tmp_path / "cache").glob("distdoctor/runs/*"))


@pytest.mark.parametrize(
    "script",
    sorted((ROOT / "fixtures" / "near_misses").glob("*.py")),
    ids=lambda p: p.stem,
)
def test_a_near_miss_is_well(script: Path, forked: Runner, tmp_path: Path) -> None:
    """What looks like a disease and is none: nothing is found, not even advice."""
    ranks = constant(script, "RANKS")
    if "RESTARTS" in script.read_text():
        restarts = f"--max-restarts={constant(script, 'RESTARTS')}"
        options = ["--standalone", f"--nproc-per-node={ranks}", restarts]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
        status, report, said = check(tmp_path, "--", *torchrun, str(script))
    else:
        status, report, said = check_forked(forked, script, ranks, options=[])
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), said


def test_every_reference_job_is_checked() -> None:
    jobs = {path.name for path in (ROOT / "reference_jobs").glob("[!_]*.py")}
    assert jobs == {job for job, _ in JOBS}
