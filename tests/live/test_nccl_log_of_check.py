"""`check` has NCCL write its log where there are GPUs, and judges it with the rest.

There are none here: the script says that there are, and writes the log as NCCL would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_box import DEADLINE_S

SCRIPT = """
import os, socket, sys
import torch
import torch.distributed as dist

torch.cuda.device_count = lambda: 2
{before}
dist.init_process_group("gloo")
rank = dist.get_rank()
print("LEVEL", os.environ.get("NCCL_DEBUG"), flush=True)
pattern = os.environ.get("NCCL_DEBUG_FILE")
if pattern:
    host, pid = socket.gethostname().partition(".")[0], os.getpid()
    name = pattern.replace("%h", host).replace("%p", str(pid))
    start = f"{{host}}:{{pid}}:{{pid}} [{{rank}}] "
    with open(name, "w") as log:
        print(start + "NCCL INFO cudaDriverVersion 12080", file=log)
        print(start + "NCCL INFO NCCL version 2.27.5+cuda12.8", file=log)
        comm = f"ncclCommInitRank comm 0x55d0{{rank}}000 rank {{rank}} nranks 2 "
        comm += f"cudaDev {{rank}} nvmlDev {{rank}} busId {{rank}}b000 "
        comm += "commId 0xfeed - Init "
        print(start + "NCCL INFO " + comm + "START", file=log)
        {log}
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
{after}
"""

FULL = """if rank == 1:
            print(file=log)
            print("[2026-11-25 03:00:00] " + start + "misc/shmutils.cc:87 NCCL WARN "
                  "Error: failed to extend /dev/shm/nccl-Q1w2e3 to 9637892 bytes, "
                  "error: No space left on device (28)", file=log)
            print(start + "NCCL INFO transport/shm.cc:590 -> 2", file=log)
            print(start + "NCCL INFO init.cc:1358 -> 2", file=log)"""
FAILS = """if rank == 1:
    raise RuntimeError("NCCL error: unhandled system error")
dist.barrier()"""
WELL = 'print(start + "NCCL INFO " + comm + "COMPLETE", file=log)'


AS_IF_THERE_WERE_GPUS = """
from distdoctor.cli import app, check
check.require_gpus = print
app()
"""


def checked(folder: Path, script: str, *options: str) -> tuple[dict[str, Any], Path]:
    """The report of a check of the script on two ranks, and its record."""
    (folder / "train.py").write_text(script)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NCCL_")
    }
    given = ["check", "train.py", "-n", "2", "--device", "cuda", *options]
    given += ["--record", "record", "--output", "report.json", "--format", "json"]
    subprocess.run(
        [sys.executable, "-c", AS_IF_THERE_WERE_GPUS, *given],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        check=False,
        timeout=DEADLINE_S,
    )
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report, folder / "record"


def test_a_full_shared_memory_is_told_by_the_log_that_nobody_asked_for(
    tmp_path: Path,
) -> None:
    script = SCRIPT.format(before="", log=FULL, after=FAILS)
    report, record = checked(tmp_path, script)
    assert len(list((record / "nccl").glob("*.log"))) == 2
    (finding,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert finding["code"] == "DD603"
    assert finding["ranks"] == [1]


def test_a_healthy_job_whose_log_is_read_is_well(
    tmp_path: Path,
) -> None:
    report, record = checked(tmp_path, SCRIPT.format(before="", log=WELL, after=""))
    assert list((record / "nccl").glob("*.log"))
    assert report["verdict"] == "well"
    assert not report["findings"]


def test_a_log_that_the_user_asked_for_is_left_where_it_is_and_read(
    tmp_path: Path,
) -> None:
    before = 'os.environ.update(NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="mine.%h.%p")'
    script = SCRIPT.format(before=before, log=FULL, after=FAILS)
    report, record = checked(tmp_path, script)
    assert not (record / "nccl").exists()
    assert len(list(tmp_path.glob("mine.*"))) == 2
    assert "DD603" in {one["code"] for one in report["findings"]}
