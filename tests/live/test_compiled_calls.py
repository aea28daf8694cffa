"""What C records of a job's calls is what Python records of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distdoctor.compiled import HOT, INTERPRETED_VARIABLE
from distdoctor.journal.assembly import read_run

DEADLINE_S = 300.0

AGAIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pair = dist.new_group([0, 1])
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def total(value, op):
    dist.all_reduce(value, op)
    return value


for turn in range(4):
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        total(torch.ones(4), op)
        total(torch.ones(2 + turn % 2, 3, dtype=torch.float64), op)
        total(torch.ones(5, dtype=torch.int64), op)
    whole = torch.ones(4 * size)
    part = torch.ones(4)
    dist.broadcast(part, src=turn % size)
    dist.reduce(part, dst=turn % size)
    dist.barrier()
    dist.all_gather([torch.zeros(4) for _ in range(size)], part)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_to_all_single(torch.zeros(4), part)
    dist.all_reduce(part, group=pair)
    dist.all_reduce(part, async_op=True).wait()
    (dist.send if rank == 0 else dist.recv)(part, 1 - rank)
    try:
        raise ValueError("of the job's own")
    except ValueError:
        dist.all_reduce(part)
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def calls(folder: Path, **variables: str) -> list[list[str]]:
    """By rank, what was recorded of each call."""
    script, record = folder / "train.py", folder / "record"
    script.write_text(AGAIN)
    command = (sys.executable, "-m", "distdoctor", "check", str(script))
    subprocess.run(
        (*command, "--full", "--record", str(record)),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        timeout=DEADLINE_S,
        capture_output=True,
        check=True,
    )
    run = read_run(record)
    told = ("op", "place", "group", "ordinal", "flags", "state", "peer", "asynchronous")
    return [
        [
            " ".join([str(call), *(str(getattr(call, one, "")) for one in told)])
            for call in map(run.call, run.rows_of(rank))
            if call.op != "init_process_group"  # it has an address
        ]
        for rank in range(run.world_size)
    ]


@pytest.mark.skipif(HOT is None, reason="installed without a compiler, or switched off")
def test_calls_are_recorded_alike_by_c_and_by_python(tmp_path: Path) -> None:
    found = []
    for name, variables in (("c", {}), ("python", {INTERPRETED_VARIABLE: "1"})):
        folder = tmp_path / name
        folder.mkdir()
        found.append(calls(folder, **variables))
    compiled, interpreted = found
    assert [len(rank) for rank in compiled] == [len(rank) for rank in interpreted]
    for rank in (0, 1):
        assert [one.replace("/c/", "/python/") for one in compiled[rank]] == (
            interpreted[rank]
        )
    assert sum("all_reduce" in one for one in compiled[0]) > 4 * 7
