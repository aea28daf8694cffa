"""Runs of one job that are compared, under the real command."""

import shlex
from pathlib import Path

import pytest
from by_rule.running import Runner
from real_runs import Checked, check, check_forked

TRAINS = """
import argparse, os, random
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--fault", default="")
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5**n)
begun = 0
if args.resume:
    if args.fault == "crash":
        raise SystemExit("no such checkpoint")
    state = torch.load("last.pt", weights_only=False)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    if args.fault != "schedule":
        schedule.load_state_dict(state["schedule"])
    begun = 0 if args.fault == "epoch" else state["epoch"] + 1
    torch.set_rng_state(state["random"])
for epoch in range(begun, 3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        if args.fault == "noise":
            x = x + random.SystemRandom().random()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
    if dist.get_rank() == 0 and args.fault != "unsaved":
        torch.save({
            "net": net.state_dict(), "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(), "epoch": epoch,
            "random": torch.get_rng_state(),
        }, "last.pt")
dist.barrier()
dist.destroy_process_group()
"""


def compared(folder: Path, proof: str, fault: str, runner: Runner | None) -> Checked:
    """Check such a job; without a runner as a user starts it."""
    (folder / "train.py").write_text(TRAINS)
    (folder / "last.pt").write_text("mine")
    options, state = [proof], f"--fault={fault}"
    if proof == "--resume":
        options.append(shlex.join(["train.py", "--resume", state]))
    if runner is None:
        checked = check(folder, "train.py", *options, "--", state)
    else:
        checked = check_forked(runner, folder, Path("train.py"), state, options=options)
    assert (folder / "last.pt").read_text() == "mine"
    return checked


def test_a_whole_resume_is_proved(forked: Runner, tmp_path: Path) -> None:
    status, report, _ = compared(tmp_path, "--resume", "", forked)
    assert (status, report["verdict"]) == (0, "well"), report
    proof = report["compared"]
    assert (proof["how"], proof["same"], proof["steps"], proof["begun"]) == (
        "resume",
        True,
        8,
        4,
    )


@pytest.mark.parametrize(
    ("fault", "summary"),
    [("schedule", "learning rate"), ("epoch", "The epoch of the sampler")],
)
def test_what_a_resume_forgets_is_named(
    forked: Runner, tmp_path: Path, fault: str, summary: str
) -> None:
    status, report, _ = compared(tmp_path, "--resume", fault, forked)
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert (status, [one["code"] for one in errors]) == (1, ["DD411"] * len(errors))
    assert any(summary in one["summary"] for one in errors), errors


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("unsaved", "wrote no checkpoint"),
        ("crash", "resumed job left with exit code 1 before its first step"),
        ("noise", "does not repeat itself"),
    ],
)
def test_what_cannot_be_proved_is_unknown(
    forked: Runner, tmp_path: Path, fault: str, why: str
) -> None:
    status, report, _ = compared(tmp_path, "--resume", fault, forked)
    assert (status, report["verdict"]) == (4, "unknown"), report["findings"]
    assert why in report["compared"]["why"]


@pytest.mark.parametrize(("fault", "same"), [("", True), ("noise", False)])
def test_a_job_is_run_twice(
    forked: Runner, tmp_path: Path, fault: str, same: bool
) -> None:
    runner = forked if fault else None
    status, report, _ = compared(tmp_path, "--twice", fault, runner)
    assert (status, report["compared"]["same"]) == (int(not same), same), report
    assert report["compared"]["steps"] == 12
    summaries = " ".join(one["summary"] for one in report["findings"])
    assert ("first in input of the model" in summaries) is not same
