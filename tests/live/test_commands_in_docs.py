"""The commands in the documents, each run in a folder with what it needs."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from horovod_leavings import RECORDED
from launchers import skip_without
from mixed_leavings import (
    kernel_killed,
    killed,
    nccl_log,
    raised_key_error,
    steps_of,
    write_stacks,
)
from told_answers import RUN
from told_commands import ROOT
from unpacked_records import unpack

_LONGEST_S = 400

_OF_THE_CLONE = ("docs/", "fixtures/", "tests/")
"""By these folders, commands for whoever works on distdoctor are known."""


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with jobs, and with what others have left."""
    for job in (ROOT / "tests" / "shared" / "told_jobs").glob("*.py"):
        shutil.copy(job, tmp_path)
    # A busy machine takes long to start ranks.
    (tmp_path / "pyproject.toml").write_text("[tool.distdoctor.check]\nbudget = 300\n")
    said = steps_of() + raised_key_error(5)
    (tmp_path / "slurm-4711.out").write_text(said)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.log").write_text(said)
    (tmp_path / "job.log.gz").write_bytes(
        gzip.compress((steps_of() + killed(5, 4005)).encode())
    )
    (tmp_path / "dmesg.txt").write_text(kernel_killed(4005))
    (tmp_path / "job.log").write_text(nccl_log(0, range(8)))
    write_stacks(tmp_path / "stacks", stuck=5)
    unpack("version_2.tar.xz", tmp_path / "runs")
    shutil.copytree(next((tmp_path / "runs").iterdir()), tmp_path / "DIR")
    (tmp_path / "scratch").mkdir()
    timeline = RECORDED / "mid2.json"
    shutil.copy(timeline, tmp_path / "scratch" / "timeline.json")
    shutil.copy(timeline.with_suffix(".out"), tmp_path / "job.out")
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("command", [*RUN], ids=lambda text: text.replace("\n", " "))
def test_it_does_what_it_is_told_for(prepared: Path, command: str) -> None:
    if "horovodrun" in command:
        skip_without("horovod.torch")
        shutil.copy(
            ROOT / "reference_jobs" / "horovod_training.py", prepared / "train.py"
        )
    expected = RUN[command]
    of_the_clone = any(folder in command for folder in _OF_THE_CLONE)
    command = command.replace("/scratch/", f"{prepared}/scratch/")
    command = command.replace("mine.svg", f"{prepared}/mine.svg")
    bin_ = Path(sys.executable).parent
    environment = {
        **os.environ,
        "HOME": str(prepared),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "XDG_CACHE_HOME": str(prepared / "cache"),
    }
    job = subprocess.Popen(
        ["bash", "-c", command],
        cwd=ROOT if of_the_clone else prepared,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=_LONGEST_S)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode in expected, said
    assert "Traceback" not in said or "autopsy" in command, said
