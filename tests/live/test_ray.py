"""Ray around a job under watch: what is left of it, and clusters that are another's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launchers import skip_without
from programs import ROOT
from real_runs import BUDGET_S, DEADLINE_S

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.launch import orphan_guard
from distdoctor.launch.orphan_guard import carriers

JOB = ROOT / "reference_jobs" / "ray_training.py"
FOLDER = "RAY_TMPDIR"

_LEADERS = {"gcs_server", "raylet"}

USES_A_CLUSTER = """
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

if __name__ == "__main__":
    TorchTrainer(lambda: None, scaling_config=ScalingConfig(num_workers=2)).fit()
"""


@pytest.fixture(autouse=True)
def _ray() -> None:
    skip_without("ray.train")


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def variables_of(pid: int) -> dict[str, str]:
    """The environment of a process that carries the mark; none if it has gone."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_the_jobs_own_ray_is_left(
    number: signal.Signals, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    mark = f"{FOLDER_VARIABLE}={record}".encode()
    command = [sys.executable, "-m", "distdoctor", "check", str(JOB)]
    options = ["--record", str(record), "--", "--epochs", "100000"]
    environment = {k: v for k, v in os.environ.items() if k != FOLDER}
    with subprocess.Popen(
        [*command, *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as doctor:
        wait_until(lambda: any(record.glob("rank-1.*.journal")))
        (folder,) = {
            Path(found)
            for pid in carriers(mark)
            if (found := variables_of(pid).get(FOLDER))
        }
        assert list(folder.glob("ray/session_*"))
        doctor.send_signal(number)
        doctor.wait(DEADLINE_S)
    wait_until(lambda: not folder.exists())
    wait_until(lambda: not list(carriers(mark)))  # the guard goes behind the folder


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """A cluster that runs already; the variables by which Ray finds it."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    variables = os.environ | {FOLDER: folder, "RAY_USAGE_STATS_ENABLED": "0"}
    variables["TEST_OF_RAY"] = folder  # Ray sets the other one for what it starts
    ray = str(Path(sys.executable).with_name("ray"))
    options = ["--head", "--num-cpus=3", "--include-dashboard=false", "--port=0"]
    mark = f"TEST_OF_RAY={folder}".encode()
    try:
        subprocess.run(
            [ray, "start", *options],
            env=variables,
            timeout=DEADLINE_S,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        yield variables
    finally:
        orphan_guard.end_all(lambda: list(carriers(mark)))
        shutil.rmtree(folder, ignore_errors=True)


def leaders(cluster: dict[str, str]) -> set[int]:
    """The processes that are the cluster; workers come and go."""
    mark = f"TEST_OF_RAY={cluster['TEST_OF_RAY']}".encode()
    found = {pid: Path(f"/proc/{pid}/comm") for pid in carriers(mark)}
    return {pid for pid, name in found.items() if name.read_text().strip() in _LEADERS}


def test_of_workers_on_anothers_cluster_nothing_is_claimed(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(USES_A_CLUSTER)
    before = leaders(cluster)
    assert before
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "distdoctor", "check", "train.py"]
    options = ["--budget", str(BUDGET_S), "--format", "json", "--output", str(report)]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=cluster | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(report.read_text())
    assert (done.returncode, told["verdict"]) == (4, "unknown"), done.stderr
    assert "RAY_ADDRESS=local" in str(told["not_examined"]), done.stderr
    assert leaders(cluster) == before  # it goes on as it was
