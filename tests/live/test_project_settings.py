"""What a project has written down for distdoctor, met by its own job."""

import json

import pytest
from command_box import Box

UNSPLIT = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(48, 4))
loader = DataLoader(data, batch_size=8){comment}
for epoch in range(2):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""

RANKS = "[tool.distdoctor.check]\nranks = 3\n"
COMMENT = "  # distdoctor: ignore[DD301] a smoke test sees all of it"
SETTING = '[tool.distdoctor.ignore]\nDD301 = "a smoke test sees all of it"\n'


def judged(box: Box) -> tuple[int, str, dict[str, object]]:
    """Exit status, the report as text, and as JSON."""
    record = str(box.folder / "record")
    status, out, err = box.run("check", "--record", record, "train.py")
    _, report, _ = box.run("examine", "--format", "json", record)
    assert report, err
    return status, out, json.loads(report)


def test_without_a_word_the_finding_stands(box: Box) -> None:
    box.write(UNSPLIT.format(comment=""))
    status, out, report = judged(box)
    assert (status, report["verdict"]) == (1, "sick")
    assert "DD301" in out
    assert "2 ranks" in out


@pytest.mark.parametrize(
    ("comment", "setting"), [(COMMENT, ""), ("", SETTING)], ids=["comment", "setting"]
)
def test_what_is_known_is_told_and_makes_nothing_sick(
    box: Box, comment: str, setting: str
) -> None:
    box.write(UNSPLIT.format(comment=comment))
    box.write(RANKS + setting, "pyproject.toml")
    status, out, report = judged(box)
    assert (status, report["verdict"]) == (0, "well")
    assert "a smoke test sees all of it" in out
    assert "3 ranks" in out
