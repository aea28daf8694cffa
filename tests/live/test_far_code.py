"""Jobs that would not end within the budget, under the real command."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from by_rule.running import Runner
from real_runs import Checked, check_forked

HEAD = """
import contextlib, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(4003, 8))
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

LONG = (
    HEAD
    + """
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=5, sampler=sampler)  # 401 batches: 1 is over
test = DataLoader(data, batch_size=8)
for epoch in range(40):
    sampler.set_epoch(epoch)
    ends, sizes = 0, []
    for i, (x,) in enumerate(loader):
        steps = (i + 1) % 4 == 0 or i + 1 == len(loader)
        with contextlib.nullcontext() if steps else model.no_sync():
            window = min(4, len(loader) - i // 4 * 4)
            (model(x).mean() / window).backward()
        if steps:
            optimizer.step()
            optimizer.zero_grad()
        ends += i + 1 == len(loader)
        sizes.append(len(x))
        time.sleep(0.02)
    with torch.no_grad():
        outputs = []
        for (x,) in test:  # 100 s in all, so that they have to be fewer
            outputs.append(model(x))
            time.sleep(0.005)
        outputs = torch.cat(outputs)
    gathered = [torch.empty_like(outputs) for _ in range(2)]
    dist.all_gather(gathered, outputs)
if rank == 0:
    counts = ends, len(sizes) % 4, sizes[0], sizes[-1], len(outputs) % 8
    print("SAVED", *counts, flush=True)
dist.barrier()
dist.destroy_process_group()
"""
)

UNEVEN = (
    HEAD
    + """
part = range(0, 2000) if rank == 0 else range(2000, 3996)
loader = DataLoader(Subset(data, part), batch_size=4)  # 500 batches, and 499
for epoch in range(100):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        time.sleep(0.02)
    dist.barrier()
"""
)


@pytest.fixture
def check(forked: Runner, tmp_path: Path) -> Callable[[str, int], Checked]:
    """Checks a script of two ranks with a budget in seconds."""

    def run(text: str, budget_s: int) -> Checked:
        script = tmp_path / "train.py"
        script.write_text(text)
        options = ["--budget", str(budget_s)]
        return check_forked(forked, tmp_path, script, options=options)

    return run


def test_a_job_of_many_epochs_comes_to_its_end(
    check: Callable[[str, int], Checked],
) -> None:
    """Accumulation with a remainder, validation, and what is done at the end."""
    status, report, output = check(LONG, 60)
    assert (status, report["verdict"], report["findings"]) == (0, "well", []), output
    # The last batch was known for the last one, a remainder of one was left, and the
    # batches at both ends had their sizes: 2 samples of 5, and 4003 % 8 outputs.
    assert "SAVED 1 1 5 2 3" in output
    assert report["run"]["stopped"] == ""
    (gap,) = report["not_examined"]
    assert gap["what"] == "what takes many batches"
    # How many passes are played in full before is a matter of the machine's speed.
    for batches in (401, 501):
        shortened = re.search(
            rf"of {batches} batches in (\d+) of 40 passes", gap["why"]
        )
        assert shortened, gap["why"]
        assert int(shortened[1]) > 20


def test_uneven_loaders_stay_uneven_by_as_many_batches(
    check: Callable[[str, int], Checked],
) -> None:
    status, report, output = check(UNEVEN, 60)
    (finding,) = report["findings"]
    assert (status, finding["code"], finding["ranks"]) == (1, "DD208", [1]), output
    assert report["run"]["seconds"] < 60
    gaps = " ".join(gap["why"] for gap in report["not_examined"])
    assert "of 500 batches" in gaps
