"""Jobs over two nodes that nobody watches: looked at on each, and judged as one."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from node_jobs import LIMIT_S, Hosts, autopsy_of, our, torchrun

RANKS = 4

JOB = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist

def spin():
    n = 0
    while True:
        n += 1

def alone(rank):
    if rank == 3:
        spin()
    dist.all_reduce(torch.ones(4))

def circles(rank):
    dist.recv(torch.zeros(4), src=rank ^ 2)  # on the other node
    dist.send(torch.zeros(4), dst=rank ^ 2)

def differ(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.barrier() if rank == 3 else dist.all_reduce(torch.ones(4))

def work(rank):
    weights = torch.ones(200, 200)
    while True:
        for _ in range(20 * (rank + 1)):
            weights = (weights @ weights).clamp(-1, 1)
        dist.all_reduce(weights)

dist.init_process_group("gloo")
dist.barrier()
rank, what, far = dist.get_rank(), sys.argv[1], Path(sys.argv[2])
far.with_name(f"far.{rank}").touch()
{"alone": alone, "circles": circles, "differ": differ, "work": work}[what](rank)
"""


@contextmanager
def job(hosts: Hosts, folder: Path, what: str) -> Iterator[None]:
    """Such a job on both hosts, with all its ranks where they will hang."""
    script = folder / "job.py"
    script.write_text(JOB)
    words = [str(script), what, str(folder / "far")]
    sides = [
        host.start(torchrun(hosts, node, RANKS // 2, *words))
        for node, host in enumerate(hosts)
    ]
    try:
        end = time.monotonic() + LIMIT_S
        while len([*folder.glob("far.*")]) < RANKS:
            assert time.monotonic() < end
            time.sleep(0.2)
        time.sleep(2)
        yield
    finally:
        for host in hosts:
            host.end_all()
        for side in sides:
            side.kill()
            side.communicate()


def looked_at(hosts: Hosts, folder: Path, apart_s: float = 0.0) -> str:
    """Have both hosts look at it, one so much later than the other; what was said."""
    command = [*our("autopsy"), "--job", "job.py", "--save", str(folder)]
    looks = []
    for host in hosts:
        looks.append(host.start([*command]))
        time.sleep(apart_s)
    said = "".join(look.communicate(timeout=LIMIT_S)[0] for look in looks)
    assert [look.returncode for look in looks] == [0, 0], said
    return said


def found(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(one["code"], one["ranks"]) for one in report["findings"]]


def test_a_rank_that_is_stuck_is_named_as_on_one_machine(
    hosts: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "looks"
    with job(hosts, tmp_path, "alone"):
        said = looked_at(hosts, folder)
    assert "ranks {2-3} of 4" in said
    report = autopsy_of(folder)
    assert found(report) == [("DD204", [3])]
    assert report["findings"][0]["locations"][0]["function"] == "spin"
    assert report["world_size"] == RANKS
    where = {one["rank"]: one["host"] for one in report["processes"]}
    assert where == {0: "hosta", 1: "hosta", 2: "hostb", 3: "hostb"}

    # A node that is missing is told, and nobody is accused.
    (folder / "hostb-2.json").unlink()
    report = autopsy_of(folder)
    assert (report["verdict"], report["findings"]) == ("unknown", [])
    gaps = json.dumps(report["not_examined"])
    assert "it is not on hosta: look at its machine as well" in gaps


def test_the_node_of_the_rank_that_is_stuck_does_not_suffice(
    hosts: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "looks"
    with job(hosts, tmp_path, "alone"):
        looked_at(hosts, folder)
    (folder / "hosta-0.json").unlink()
    report = autopsy_of(folder)
    assert report["verdict"] == "unknown", found(report)


@pytest.mark.parametrize(
    ("what", "code"), [("circles", "DD205"), ("differ", "DD101"), ("work", "")]
)
def test_hangs_and_work_are_told_as_on_one_machine(
    what: str, code: str, hosts: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "looks"
    with job(hosts, tmp_path, what):
        looked_at(hosts, folder)
    report = autopsy_of(folder)
    assert {one["code"] for one in report["findings"]} == {code} - {""}
    if code == "DD101":
        assert found(report) == [("DD101", [3])]
    if code == "DD205":
        assert len(report["findings"]) == 2
    assert report["verdict"] == ("sick" if code else "unknown")


def test_looks_at_other_times_accuse_nobody(hosts: Hosts, tmp_path: Path) -> None:
    folder = tmp_path / "looks"
    with job(hosts, tmp_path, "alone"):
        looked_at(hosts, folder, apart_s=45.0)
    report = autopsy_of(folder)
    assert (report["verdict"], report["findings"]) == ("unknown", [])
    gaps = json.dumps(report["not_examined"])
    assert "not looked at at the same time" in gaps
