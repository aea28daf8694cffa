"""Ranks of a larger job, simulated under the real command."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from real_runs import Checked, check

TRAINING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert world % 8 == 0
lists = [None] * world
dist.all_gather_object(lists, {"rank": rank})
box = [{"lr": 0.1} if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
model = DDP(nn.Linear(8, 4))
for step in range(3):
    loss = model(torch.randn(2, 8)).square().mean()
    (loss * box[0]["lr"]).backward()
    if step == 0 or rank != CULPRIT:
        dist.all_reduce(loss.detach())
dist.barrier()
dist.destroy_process_group()
"""


def simulated(folder: Path, script: str, *options: str) -> Checked:
    (folder / "train.py").write_text(script)
    return check(folder, "train.py", *options)


def lines(report: dict[str, Any]) -> Sequence[int]:
    (finding,) = report["findings"]
    return [location["line"] for location in finding["locations"]]


def test_a_rank_of_1024_that_leaves_a_call_out_is_named(tmp_path: Path) -> None:
    script = TRAINING.replace("CULPRIT", "513")
    status, report, output = simulated(
        tmp_path, script, "--world-size", "1024", "--as-rank", "0,1,513"
    )
    assert (status, report["verdict"]) == (1, "sick"), output
    (finding,) = report["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD108", [513])
    assert script.splitlines().index("        dist.all_reduce(loss.detach())") + 1 in (
        lines(report)
    )
    assert (report["world_size"], report["run"]["simulated"]) == (
        1024,
        [0, 1, 513],
    )


def test_its_healthy_twin_is_well(tmp_path: Path) -> None:
    script = TRAINING.replace("CULPRIT", "-1")
    status, report, output = simulated(
        tmp_path, script, "--world-size", "1024", "--as-rank", "0,513"
    )
    assert (status, report["verdict"], report["findings"]) == (0, "well", []), output


SHARDED = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data = TensorDataset(torch.arange(192.0)[:, None])
shards = 16 if sys.argv[1:] else dist.get_world_size()
sampler = DistributedSampler(data, shards, dist.get_rank())
model = DDP(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (numbers,) in DataLoader(data, 4, sampler=sampler):
        optimizer.zero_grad()
        model(numbers).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def test_what_the_ranks_read_that_are_not_simulated_is_not_missed(
    tmp_path: Path,
) -> None:
    options = "--world-size", "16", "--as-rank", "0,9"
    status, report, output = simulated(tmp_path, SHARDED, *options)
    assert (status, report["verdict"], report["findings"]) == (0, "well", []), output
    # The same split, where no more ranks than these two read, is a fault.
    status, report, output = simulated(tmp_path, SHARDED, "--", "16")
    assert [one["code"] for one in report["findings"]] == ["DD303"], output


STOPS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    stop = torch.zeros(1) if rank == 0 else torch.empty(1)
    if rank == 0:
        for other in range(1, dist.get_world_size()):
            dist.send(torch.ones(1), dst=other)
        go = True
    else:
        dist.recv(stop, src=0)
        go = bool(stop.item())
    if go:
        dist.barrier()
dist.all_reduce(torch.ones(2))
"""


def test_a_rank_that_acts_on_what_it_receives_is_not_accused(tmp_path: Path) -> None:
    status, report, output = simulated(
        tmp_path, STOPS, "--world-size", "64", "--as-rank", "0-1"
    )
    assert (status, report["verdict"], report["findings"]) == (4, "unknown", []), output
    assert any("stand-ins" in gap["why"] for gap in report["not_examined"])
