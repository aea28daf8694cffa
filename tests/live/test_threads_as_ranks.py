"""Threads that play the ranks of a job in one process, as in torch's own test cases."""

import sys
from pathlib import Path

import real_runs

from distdoctor.journal.assembly import read_run
from distdoctor.model.events import Started

JOB = """
import threading
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg

torch._C._distributed_c10d._set_thread_isolation_mode(True)
multi_threaded_pg._install_threaded_pg()
store = dist.HashStore()
sums = [0.0, 0.0]


def rank(number):
    for _ in range(2):
        dist.init_process_group("threaded", rank=number, world_size=2, store=store)
        value = torch.full((4,), float(number + 1))
        dist.all_reduce(value)
        sums[number] += value.sum().item()
        dist.barrier()
        dist.destroy_process_group()


threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("sums", sums)
"""


def test_threads_that_play_ranks_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    status, report, output = real_runs.check(
        tmp_path, "--record", "record", "--", sys.executable, "job.py"
    )
    assert "sums [24.0, 24.0]" in output
    assert status == 4
    assert not real_runs.findings_of(report)
    run = read_run(tmp_path / "record")
    (rank,) = run.seen  # whichever thread came first
    assert [event.joined for event in run.of(Started, rank)] == [True]
    assert not run.column("op").size
    assert "ranks are threads of one process" in str(report)
