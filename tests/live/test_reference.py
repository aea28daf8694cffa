"""`--reference`: a job is compared with the same job on one rank."""

import sys
from pathlib import Path
from typing import Any

import pytest
from real_runs import Checked, check

JOB = """
import argparse
import random
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--each", type=int, default=0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--norm", action="store_true")
parser.add_argument("--share", type=float, default=1.0)
parser.add_argument("--hook", default="")
parser.add_argument("--own-stream", action="store_true")
parser.add_argument("--python-stream", action="store_true")
parser.add_argument("--later", type=float, default=0.0)
options = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
layers = [nn.Linear(6, 8), nn.Dropout(options.dropout), nn.Linear(8, 2)]
if options.norm:
    layers.insert(1, nn.BatchNorm1d(8))
stream = torch.Generator().manual_seed(rank)
random.seed(rank)


class Masked(nn.Sequential):
    def forward(self, x):
        hidden = super().forward(x)
        if options.python_stream:
            hidden = hidden * random.random()
        if options.own_stream:
            hidden = hidden * (torch.rand(hidden.shape, generator=stream) > 0.3)
        return hidden + options.later * (size > 1 and rank == 1)


model = DistributedDataParallel(nn.Sequential(Masked(*layers), nn.Linear(2, 2)))
if options.hook == "bf16" and size > 1:
    def halved(state, bucket):
        small = bucket.buffer().bfloat16()
        dist.all_reduce(small)
        done = torch.futures.Future()
        done.set_result(small.float() / size)
        return done

    model.register_comm_hook(None, halved)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.Generator().manual_seed(5)
for _ in range(6):
    whole = torch.randn(8, 6, generator=samples)
    batch = whole[: options.each] + rank if options.each else whole.chunk(size)[rank]
    optimizer.zero_grad()
    loss = mse_loss(model(batch), batch[:, :2])
    (loss * (options.share if size > 1 else 1.0)).backward()
    optimizer.step()
dist.destroy_process_group()
"""


SEQUENCE_PARALLEL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


dist.init_process_group("gloo")
torch.manual_seed(4)
model = Net()
parallelize_module(
    model,
    init_device_mesh("cpu", (dist.get_world_size(),)),
    {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1)
        ),
    },
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.Generator().manual_seed(5)
for _ in range(5):
    batch = torch.randn(3, 4, 8, generator=samples)
    optimizer.zero_grad()
    (model(batch) - batch.roll(1, 2)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def compare(folder: Path, *arguments: str) -> Checked:
    (folder / "train.py").write_text(JOB)
    return check(folder, "--reference", "train.py", "--", *arguments)


def gaps(report: dict[str, Any]) -> str:
    return " ".join(one["why"] for one in report["not_examined"])


def test_a_job_that_is_its_reference_is_well_and_leaves_no_values(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(JOB)
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    status, report, output = check(
        tmp_path,
        *("--reference", "--record", "kept", "--"),
        *(*command, "--nproc-per-node=2", "train.py"),
    )
    assert (status, report["verdict"]) == (0, "well"), output
    compared = report["compared"]
    assert (compared["how"], compared["steps"], compared["same"]) == (
        *("reference", 4),
        True,
    )
    kept = {one.name for one in (tmp_path / "kept").iterdir()}
    assert "comparison.json" in kept
    assert not kept & {"reference", "moved", "values"}


def test_terms_that_dtensor_adds_up_in_the_step_are_no_departure(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SEQUENCE_PARALLEL)
    status, report, output = check(tmp_path, "--reference", "train.py")
    assert (status, report["verdict"]) == (0, "well"), output
    assert (report["compared"]["steps"], report["compared"]["same"]) == (4, True)


def test_a_wrong_scale_is_told_with_its_factor(tmp_path: Path) -> None:
    status, report, output = compare(tmp_path, "--share", "0.5")
    assert status == 1, output
    (finding,) = [one for one in report["findings"] if one["code"] == "DD552"]
    assert "exactly 1/2 of what the reference has" in finding["summary"]
    assert finding["details"]["step"] == 1
    assert len(finding["details"]["tensors"]) == 6
    assert "are to be added up, and they are averaged" in finding["summary"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--each", "4"), "other samples in step 1"),
        (("--dropout", "0.5"), "draws random numbers"),
        (("--norm",), "BatchNorm1d normalises by each rank's own part"),
        (("--own-stream",), "draws random numbers"),
        (("--python-stream",), "draws random numbers"),
    ],
)
def test_what_is_meant_to_differ_is_unknown(
    tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    status, report, output = compare(tmp_path, *arguments)
    assert (status, report["verdict"]) == (4, "unknown"), output
    assert why in gaps(report)
    assert not [one for one in report["findings"] if one["code"] == "DD552"]


def test_gradients_in_few_bits_are_compared_as_such(tmp_path: Path) -> None:
    status, report, output = compare(tmp_path, "--hook", "bf16")
    assert (status, report["verdict"]) == (0, "well"), output
    assert report["compared"]["steps"] == 1


def test_the_first_module_that_gives_another_thing_is_named(tmp_path: Path) -> None:
    status, report, output = compare(tmp_path, "--later", "0.2")
    assert status == 1, output
    (finding,) = [one for one in report["findings"] if one["code"] == "DD552"]
    assert "In the forward pass `0` is the first on rank 1" in finding["summary"]
    assert finding["ranks"] == [1]
    calls = [one["remark"] for one in finding["locations"]]
    assert "calls 0" in calls
    lines = JOB.splitlines()
    computing = {
        lines[one["line"] - 1].strip()
        for one in finding["locations"]
        if one["remark"] == "computes what parts"
    }
    assert "return hidden + options.later * (size > 1 and rank == 1)" in computing


FLAT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
inner = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples = torch.Generator().manual_seed(5)
for _ in range(6):
    batch = torch.randn(8, 5, generator=samples).chunk(size)[rank]
    optimizer.zero_grad()
    (model(batch) - batch[:, :3]).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_flat_parameters_are_placed_and_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FLAT)
    status, report, output = check(tmp_path, "--reference", "train.py")
    assert (status, report["compared"]["same"]) == (0, True), output


TOLD = """
import torch
import torch.distributed as dist
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        weight = torch.randn(4, 3, 3)
        per = 4 // size
        self.weight = nn.Parameter(weight[per * rank : per * rank + per].clone())
        self.scale = nn.Parameter(torch.ones(per * 2))  # two for each expert


dist.init_process_group("gloo")
torch.manual_seed(3)
rank, size = dist.get_rank(), dist.get_world_size()


class Net(Experts):
    def forward(self, x):
        scale = self.scale.reshape(-1, 2)[:, :1, None]
        return torch.einsum("bi,eij->ebj", x, self.weight) * scale


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.Generator().manual_seed(5)
for _ in range(6):
    batch = torch.randn(8, 3, generator=samples)
    optimizer.zero_grad()
    ((model(batch) - batch) ** 2).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_what_the_project_says_of_tensors_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TOLD)
    (tmp_path / "pyproject.toml").write_text(
        '[[tool.distdoctor.reference]]\ntensor = "scale"\naxis = 0\nparts = [1, 0]\n'
    )
    status, report, output = check(tmp_path, "--reference", "train.py")
    assert status == 1, output  # it is wrong: that of rank 0 is the first part
    (finding,) = [one for one in report["findings"] if one["code"] == "DD552"]
    assert finding["details"]["tensors"] == ["scale"]


def test_a_command_of_its_own_gives_the_reference(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone"
    reference = f"{torchrun} --nproc-per-node 1 train.py"
    status, report, output = check(tmp_path, "train.py", "--reference", reference)
    assert (status, report["compared"]["same"]) == (0, True), output


def test_a_reference_of_several_ranks_is_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone"
    reference = f"{torchrun} --nproc-per-node 2 train.py"
    status, report, output = check(tmp_path, "train.py", "--reference", reference)
    assert status == 4, output
    assert "several ranks" in gaps(report)
