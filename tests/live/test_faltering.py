"""Probes that go wrong on one rank: the job goes on, and nobody is told to be sick."""

from collections.abc import Callable
from pathlib import Path

import pytest
from by_rule.running import Runner
from real_runs import Checked, check_forked

Faulty = Callable[[str, str, str, int], Checked]


JOB = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
net = DistributedDataParallel(torch.nn.Linear(4, 1))
pair = dist.new_group([0, 1])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(2 + dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1), group=pair)
dist.barrier()
print("WEIGHT", net.module.weight.sum().item(), flush=True)
dist.destroy_process_group()
"""

SICK = JOB.replace(
    "dist.barrier()", "dist.barrier() if dist.get_rank() else dist.all_reduce(pair_t)"
).replace("pair = ", "pair_t = torch.ones(3)\npair = ")

FAULT = """
import os


def failing(made):
    calls = []

    def wrong(*args, **kwargs):
        calls.append(1)
        if len(calls) % EVERY == 0:
            raise ZeroDivisionError("injected")
        return made(*args, **kwargs)
    return wrong


if os.environ.get("RANK") == "1":
    PLACE
    setattr(place, NAME, failing(getattr(place, NAME)))
"""

COLLECTIVES = "from distdoctor.probes.collectives import interception as place"
SETUP = "from distdoctor.probes.rendezvous import setup_calls as place"
MEETINGS = "from distdoctor.probes.rendezvous import meetings as place"

PLACES = [
    (COLLECTIVES, "layered_way", 3),
    (COLLECTIVES, "describe", 1),
    (COLLECTIVES, "group_text", 1),
    (COLLECTIVES + ".Collectives", "_left", 2),
    (COLLECTIVES + ".Collectives", "_kernel", 1),
    (MEETINGS, "call_site", 1),
    (MEETINGS, "signature", 1),
    (MEETINGS, "_meet", 2),
    (SETUP, "_whom", 1),
]


@pytest.fixture
def faulty(forked: Runner, tmp_path: Path) -> Faulty:
    """Checks a script whose second rank has a probe that goes wrong."""

    def run(script: str, place: str, name: str, every: int) -> Checked:
        (tmp_path / "train.py").write_text(f"import fault\n{script}")
        if ".Collectives" in place:
            place = place.replace(".Collectives", "\n    place = place.Collectives")
        fault = FAULT.replace("PLACE", place).replace("EVERY", str(every))
        (tmp_path / "fault.py").write_text(fault.replace("NAME", repr(name)))
        return check_forked(forked, tmp_path, tmp_path / "train.py")

    return run


@pytest.mark.parametrize(
    ("place", "name", "every"), PLACES, ids=[name for _, name, _ in PLACES]
)
def test_a_healthy_job_is_not_stopped_nor_accused(
    faulty: Faulty, place: str, name: str, every: int
) -> None:
    code, report, output = faulty(JOB, place, name, every)
    assert output.count("WEIGHT") == 2
    assert (code, report["verdict"]) == (4, "unknown"), report
    assert not [f for f in report["findings"] if f["severity"] == "error"]
    assert report["run"]["exit_code"] == 0
    assert "injected" in str(report["not_examined"]) + str(report["remarks"])


def test_a_job_that_cannot_go_on_is_told_all_the_same(faulty: Faulty) -> None:
    code, report, _ = faulty(SICK, COLLECTIVES, "layered_way", 3)
    assert code == 1
    assert [f["code"] for f in report["findings"]][:1] == ["DD101"]
