"""Ranks that are started unlike: with other sources, packages and variables."""

import sys
from pathlib import Path

import pytest
from real_runs import check, findings_of

PROGRAM = """
import torch.distributed as dist
import measure

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    import secret_diary  # who writes the log
dist.barrier()
dist.destroy_process_group()
"""

MODULE = '"""Lengths."""\n\ndef length(values):\n    """In m."""\n    return {}\n'


@pytest.fixture
def job(tmp_path: Path, free_port: int) -> list[list[str]]:
    """The commands of two ranks, each with a folder of its own on its path."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "secret_diary.py").write_text("__version__ = '1.0'\n")
    commands = []
    for rank in (0, 1):
        folder = tmp_path / f"copy_{rank}"
        folder.mkdir()
        (folder / "measure.py").write_text(MODULE.format("max(values)"))
        words = [f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1"]
        words += [f"MASTER_PORT={free_port}", "OMP_NUM_THREADS=" + str(rank + 1)]
        words += [f"PYTHONPATH={folder}:{tmp_path / 'diary'}", sys.executable]
        commands.append([*words, "train.py"])
    return commands


def test_two_copies_of_the_same_sources_are_well(
    tmp_path: Path, job: list[list[str]]
) -> None:
    with (tmp_path / "copy_1" / "measure.py").open("a") as file:
        file.write("\n# as it was\n")
    first, second = job
    status, report, output = check(tmp_path, "--", *first, ":::", *second)
    assert (status, findings_of(report)) == (0, []), output
    assert {"DD601", "DD610", "DD611"} <= {*report["checks"]["well"]}


def test_what_differs_is_told(tmp_path: Path, job: list[list[str]]) -> None:
    (tmp_path / "copy_1" / "measure.py").write_text(MODULE.format("sum(values)"))
    first, second = job
    settings = ["NCCL_P2P_LEVEL=SYS", "CUDA_LAUNCH_BLOCKING=1"]
    first, second = ["CUDA_LAUNCH_BLOCKING=1", *first], [*settings, *second]
    status, report, output = check(tmp_path, "--", *first, ":::", *second)
    assert status == 1, output
    found = {one["code"]: one for one in findings_of(report)}
    assert {code: one["severity"] for code, one in found.items()} == {
        "DD601": "warning",
        "DD610": "error",
        "DD611": "note",
    }
    assert "measure" in found["DD610"]["summary"]
    assert "secret_diary" not in found["DD610"]["summary"]
    files = [Path(one["file"]).parent.name for one in found["DD610"]["locations"]]
    assert files == ["copy_0", "copy_1"]
    assert "SYS on rank 1" in found["DD601"]["summary"]
