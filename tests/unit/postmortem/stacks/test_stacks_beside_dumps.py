"""Stacks beside dumps of the flight recorder: one job, one finding."""

import random
from pathlib import Path

import recorder_faults
from recorder_dumps import Simulation, Style, ddp, dumps, write
from stack_dumps import py_spy_text


def test_a_stack_tells_where_a_rank_stands_that_made_no_call(tmp_path: Path) -> None:
    job = ddp(4, 8)
    case = recorder_faults.stopped_long(job, random.Random(3))
    assert case is not None
    (stuck,) = case.ranks[0]
    style = Style()
    done = Simulation(job, 5, 0)
    write(tmp_path, dumps(job, done, style, at_once=False), style)
    alone = recorder_faults.report_of(tmp_path)
    for rank in range(4):
        text = py_spy_text(rank, stuck=rank == stuck)
        (tmp_path / f"rank{rank}.stack").write_text(text)
    report = recorder_faults.report_of(tmp_path)
    (before,), (after,) = alone["findings"], report["findings"]
    assert before["code"] == after["code"] == "DD204"
    assert before["ranks"] == after["ranks"] == [stuck]
    assert after["evidence"] == ["dump", "stack"]
    assert after["locations"][0]["file"] == "data/shards.py"
    assert "read_shard (data/shards.py:12)" in after["summary"]
    assert report["stacks"]
