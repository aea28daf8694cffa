"""Jobs under `distdoctor record`, killed or not, and what an autopsy says of them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from distdoctor.journal.environment import FOLDER_VARIABLE

SCRIPT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, loss = dist.get_rank(), torch.ones(4)
for _ in range(int((sys.argv + ["0"])[2])):
    dist.all_reduce(loss)
for step in range(1000):
    if sys.argv[1] == "raise" and step == 20 and rank == 1:
        raise KeyError("label")
    if sys.argv[1] == "hang" and step == 20 and rank == 1:
        dist.barrier()
    dist.all_reduce(loss)
    if rank == 0 and step == 19:
        print("far", flush=True)
    time.sleep(0.01)
"""

PATIENCE_S = 120.0


PROGRAM = ("-m", "distdoctor")
SMALL_BYTES = 1 << 18

SMALL_RINGS = f"""
from distdoctor.cli import main
from distdoctor.launch import recording
recording.DEFAULT_BYTES = {SMALL_BYTES}
main()
"""


def start(
    folder: Path, how: str, before: int = 0, program: Sequence[str] = PROGRAM
) -> subprocess.Popen[bytes]:
    """Such a job, with so many calls before all else."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, *program, "record", "--to", "record", "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "train.py", how, str(before)]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def kill_all(job: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill every process at once, as a machine that goes down does."""
    job.kill()
    mark = str(folder / "record")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(FOLDER_VARIABLE) == mark:
                process.kill()


def autopsy(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "distdoctor", "autopsy", ".", "--format", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported


def test_a_rank_that_raised_is_told(tmp_path: Path) -> None:
    with start(tmp_path, "raise") as job:
        assert job.wait(PATIENCE_S) == 1
    (finding,) = autopsy(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD202", [1])
    assert finding["locations"][0]["file"] == "train.py"


def test_a_hang_that_was_killed_whole_is_told(tmp_path: Path) -> None:
    with start(tmp_path, "hang") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"far\n"
        with suppress(subprocess.TimeoutExpired):
            job.wait(3)
        kill_all(job, tmp_path)
    (finding,) = autopsy(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD108", [1])


def test_a_long_record_stays_small_and_tells_the_end(tmp_path: Path) -> None:
    with start(tmp_path, "hang", 4_000, ("-c", SMALL_RINGS)) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"far\n"
        with suppress(subprocess.TimeoutExpired):
            job.wait(3)
        kill_all(job, tmp_path)
    files = [path for path in (tmp_path / "record").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2 * SMALL_BYTES + (1 << 16)
    report = autopsy(tmp_path)
    (finding,) = report["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD108", [1])


def test_a_job_that_was_well_when_it_was_killed_accuses_nobody(tmp_path: Path) -> None:
    with start(tmp_path, "well") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"far\n"
        kill_all(job, tmp_path)
    report = autopsy(tmp_path)
    assert (report["verdict"], report["findings"]) == ("unknown", [])
