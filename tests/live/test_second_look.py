"""A tie of two ranks is looked at again with three."""

from pathlib import Path

from by_rule.running import Runner
from real_runs import check_forked

from distdoctor.checking.second_look import RANKS

SIZES = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
sizes = [4, 3, 3, 3]
for step in range(3):
    values = torch.ones(sizes[dist.get_rank()])
    dist.all_reduce(values)
dist.destroy_process_group()
"""


def test_the_majority_of_three_decides(forked: Runner, tmp_path: Path) -> None:
    script = tmp_path / "sizes.py"
    script.write_text(SIZES)
    status, report, output = check_forked(forked, tmp_path, script)
    assert status == 1, output
    (found,) = report["findings"]
    assert (found["code"], found["ranks"]) == ("DD102", [0]), found["summary"]
    assert report["world_size"] == RANKS[0]
    assert any("again with 3" in remark for remark in report["remarks"])
