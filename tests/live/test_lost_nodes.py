"""Each side of a job over two nodes may be lost: the other ends, and says so."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_jobs import ENDLESS, LOST_S, Hosts, NodesCheck, wait_for_ranks


@pytest.fixture
def endless(clean: Hosts, tmp_path: Path) -> Iterator[NodesCheck]:
    """A job of four ranks that train without end, and do so already."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    record = tmp_path / "record"
    options = ["--record", str(record)]
    check = NodesCheck(clean, tmp_path, str(script), ranks=4, options=options)
    wait_for_ranks(record, 4)
    yield check
    check.close()


def test_a_node_behind_a_cut_wire_is_told_as_lost(
    endless: NodesCheck, clean: Hosts
) -> None:
    clean[1].cut()
    try:
        status, report, said = endless.outcome(LOST_S)
    finally:
        clean[1].mend()
    assert (status, report["verdict"]) == (4, "unknown"), said
    gaps = json.dumps(report["not_examined"])
    assert "its node hostb was lost: nothing was heard of it for 10 s" in gaps, said
    assert "the head is lost" in said


def test_a_node_whose_supervisor_is_killed_is_told_as_lost(
    endless: NodesCheck, clean: Hosts
) -> None:
    assert clean[1].kill_by_name("distdoctor join") == 1
    status, report, said = endless.outcome(LOST_S)
    assert status == {"unknown": 4, "sick": 1}[report["verdict"]], said
    assert "its node hostb was lost" in json.dumps(report["not_examined"]), said


def test_a_node_ends_its_ranks_when_the_head_is_killed(
    endless: NodesCheck, clean: Hosts
) -> None:
    assert clean[0].kill_by_name("distdoctor check") == 1
    joined, _ = endless.joined.communicate(timeout=LOST_S)
    assert endless.joined.returncode, joined


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_head_ends_the_job_on_all_nodes(
    endless: NodesCheck, clean: Hosts, number: int
) -> None:
    assert clean[0].kill_by_name("distdoctor check", number) == 1
    status, report, said = endless.outcome(LOST_S)
    assert status == 128 + number, said
    assert report["verdict"] == "unknown"
    assert "the head ends the job" in said


def test_a_budget_that_is_spent_ends_the_job_on_all_nodes(
    clean: Hosts, tmp_path: Path
) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    options = ["--budget", "30"]
    check = NodesCheck(clean, tmp_path, str(script), ranks=4, options=options)
    status, report, said = check.outcome(100.0)
    assert (status, report["verdict"]) == (0, "well"), said
    assert report["world_size"] == 4
