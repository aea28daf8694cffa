"""The reference jobs are well; some are started as a user does.

Those of systems of parallelism are checked in `test_systems.py`.
"""

from pathlib import Path

import pytest
from by_rule.running import Runner
from launchers import command_of, skip_without
from programs import ROOT
from real_runs import check, check_forked, findings_of
from systems import systems

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

HOROVOD = "horovod_training.py"

OF_TENSORFLOW = ["horovod_tensorflow_loop.py", "horovod_keras.py"]
"""See `test_tensorflow_jobs.py`."""

AS_A_USER_DOES = [JOBS[0], ("cuda_training.py", "")]
"""The one that the README begins with; and the first use of a GPU is of a start."""


@pytest.mark.parametrize(("job", "options"), JOBS)
def test_a_reference_job_is_well(
    job: str, options: str, forked: Runner, tmp_path: Path
) -> None:
    script = ROOT / "reference_jobs" / job
    if (job, options) in AS_A_USER_DOES:
        checked = check(tmp_path, str(script), "--", *options.split())
    else:
        checked = check_forked(forked, tmp_path, script, *options.split())
    status, report, output = checked
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
    assert report["world_size"] == 2
    assert report["run"]["steps"] > 0
    assert not list((tmp_path / "cache").glob("distdoctor/runs/*"))


def test_training_with_horovod_is_well_and_so_is_its_resumption(tmp_path: Path) -> None:
    """The second run goes on from the checkpoint of the first, with other options."""
    skip_without("horovod.torch")
    command = [*command_of("horovodrun", 2), str(ROOT / "reference_jobs" / HOROVOD)]
    command += ["--checkpoint", str(tmp_path / "kept.pt")]
    for options in (["--epochs", "2"], ["--epochs", "4", "--no-fp16"]):
        status, report, output = check(tmp_path, "--", *command, *options)
        verdict, findings = report["verdict"], findings_of(report)
        assert (status, verdict, findings) == (0, "well", []), output
        assert report["world_size"] == 2
        assert report["run"]["steps"] > 0


ON_A_NODE_OF_ITS_OWN = """
import os, runpy, sys

os.environ.update(NCCL_HOSTID=os.environ["RANK"], LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Has each rank take the only GPU, as NCCL allows ranks of different hosts to."""

ON_NCCL = [
    *(one for one in JOBS if one[0] not in {"spawn_training.py", "cuda_training.py"}),
    *(
        (system.job, " ".join(system.options))
        for system in systems()
        if system.launcher == "torchrun" and system.job != "model_parallel.py"
    ),
]
"""Of the others one starts its own ranks, one has rank 0 of each node write, and one
wants two GPUs for each rank."""


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="there is no GPU")
@pytest.mark.parametrize(("job", "options"), ON_NCCL)
def test_a_reference_job_is_well_on_nccl(
    job: str, options: str, tmp_path: Path
) -> None:
    ranks = max((system.ranks for system in systems() if system.job == job), default=2)
    script = tmp_path / "train.py"
    script.write_text(ON_A_NODE_OF_ITS_OWN)
    arguments = [str(ROOT / "reference_jobs" / job), *options.split()]
    command = ["-n", str(ranks), "--device", "cuda", str(script), "--", *arguments]
    status, report, output = check(tmp_path, *command)
    # As on hosts of their own, ranks meet through the network.
    codes = [one["code"] for one in findings_of(report) if one["code"] != "DD602"]
    assert (status, codes) == (0, []), output
    assert report["run"]["backend"].endswith("nccl")


def test_every_reference_job_is_checked() -> None:
    jobs = {path.name for path in (ROOT / "reference_jobs").glob("[!_]*.py")}
    jobs -= set(OF_TENSORFLOW)
    of_systems = {system.job for system in systems()}
    assert jobs == {job for job, _ in JOBS} | {HOROVOD} | of_systems
