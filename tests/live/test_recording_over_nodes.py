"""Jobs of two nodes under `distdoctor record`, and what an autopsy says of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from node_jobs import LIMIT_S, LOST_S, PORT, TOKEN, Hosts, autopsy_of, our, torchrun

from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    HEAD_VARIABLE,
    RECORD_VARIABLE,
    TOKEN_VARIABLE,
)
from distdoctor.probes import NEEDLE
from distdoctor.probes.node_entry import HeadText

RANKS = 4

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, how, far = dist.get_rank(), sys.argv[1], Path(sys.argv[2])
steps = {"endless": 10**6, "hang": 10**6}.get(how, 40)
for step in range(steps):
    if step == 20 and rank == 3 and how == "raise":
        raise KeyError("label")
    if step == 20 and rank == 3 and how == "hang":
        dist.barrier()
    is_enough = torch.full((4,), float(far.with_name("enough").exists()))
    dist.all_reduce(is_enough)
    if is_enough.any():  # for all alike, or one would leave before the others
        break
    if step == 19:
        far.with_name(f"far.{rank}").touch()
    if step % 10 == 0 and rank == 0:
        far.write_text(str(step))
    time.sleep(0.02)
"""


class NodesRecording:
    """A job that is recorded on the first host, and joined on the second."""

    def __init__(self, hosts: Hosts, folder: Path, how: str) -> None:
        self.hosts, self.folder = hosts, folder
        self.record = folder / "record"
        script = folder / "train.py"
        script.write_text(SCRIPT)
        words = (str(script), how, str(folder / "far"))
        address = f"{hosts[0].address}:{PORT}"
        part = torchrun(hosts, 1, RANKS // 2, *words)
        self.joined = hosts[1].start(
            [*our("join"), address, "--", *part], DISTDOCTOR_TOKEN=TOKEN
        )
        options = ["--to", str(self.record), "--nodes", "2", "--listen", address]
        part = torchrun(hosts, 0, RANKS // 2, *words)
        self.head = hosts[0].start(
            [*our("record"), *options, "--", *part], DISTDOCTOR_TOKEN=TOKEN
        )

    def until_far(self) -> None:
        """Wait until all ranks have trained for some steps."""
        self._until(lambda: len([*self.folder.glob("far.*")]) == RANKS)

    def goes_on(self) -> None:
        """See that the job trains on."""
        before = self._step()
        self._until(lambda: self._step() > before + 20)

    def ask_to_stop(self) -> None:
        """Have the job end by itself."""
        (self.folder / "enough").touch()

    def _step(self) -> int:
        text = (self.folder / "far").read_text()
        return int(text or "0")

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def statuses(self, limit_s: float = LIMIT_S) -> tuple[int, int]:
        """How both sides have ended."""
        return self.head.wait(limit_s), self.joined.wait(limit_s)

    def said(self) -> str:
        """What both sides have printed; they are ended, if they have not."""
        said = []
        for side in (self.head, self.joined):
            if side.poll() is None:
                side.kill()
            with suppress(ValueError):
                said.append(side.communicate()[0])
        return "\n--- joined:\n".join(said)


def found(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(one["code"], one["ranks"]) for one in report["findings"]]


def test_a_job_that_ends_well_is_told_as_on_one_machine(
    clean: Hosts, tmp_path: Path
) -> None:
    job = NodesRecording(clean, tmp_path, "well")
    assert job.statuses() == (0, 0), job.said()
    report, said = autopsy_of(job.record), job.said()
    assert (report["verdict"], report["world_size"]) == ("well", RANKS), said
    assert [*report["not_examined"]] == [*single(tmp_path)["not_examined"]]


def single(folder: Path) -> dict[str, Any]:
    """What is told of the same job on one machine."""
    far, record = folder / "alone" / "far", folder / "alone" / "record"
    far.parent.mkdir()
    place = ["--standalone", "--nproc-per-node", str(RANKS)]
    script = [str(folder / "train.py"), "well", str(far)]
    start = [sys.executable, "-m", "torch.distributed.run", *place, *script]
    command = [*our("record"), "--to", str(record), "--", *start]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, capture_output=True, check=True, env=variables)
    return autopsy_of(record)


def test_a_rank_of_the_other_node_that_raised_is_told(
    clean: Hosts, tmp_path: Path
) -> None:
    job = NodesRecording(clean, tmp_path, "raise")
    head, joined = job.statuses()
    report, said = autopsy_of(job.record), job.said()
    assert head, said
    assert joined, said
    (finding,) = report["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD202", [3]), said
    assert finding["locations"][0]["file"] == str(tmp_path / "train.py")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_hang_that_was_ended_from_outside_is_told(
    number: signal.Signals, clean: Hosts, tmp_path: Path
) -> None:
    job = NodesRecording(clean, tmp_path, "hang")
    job.until_far()
    time.sleep(4)
    for host, command in zip(clean, ("record", "join"), strict=True):
        assert host.kill_by_name(f"distdoctor {command}", number) == 1
    job.statuses(LOST_S)
    report, said = autopsy_of(job.record), job.said()
    assert found(report) == [("DD108", [3])], said


def test_a_hang_that_was_killed_whole_is_told(clean: Hosts, tmp_path: Path) -> None:
    job = NodesRecording(clean, tmp_path, "hang")
    job.until_far()
    time.sleep(8)
    for host in clean:
        host.end_all()
    report, said = autopsy_of(job.record), job.said()
    assert found(report) == [("DD108", [3])], said


@pytest.mark.parametrize("which", [0, 1])
def test_a_job_that_is_ended_on_one_node_first_accuses_nobody(
    which: int, clean: Hosts, tmp_path: Path
) -> None:
    job = NodesRecording(clean, tmp_path, "endless")
    job.until_far()
    name = ("record", "join")[which]
    assert clean[which].kill_by_name(f"distdoctor {name}", signal.SIGTERM) == 1
    job.statuses()
    report, said = autopsy_of(job.record), job.said()
    assert (report["verdict"], report["findings"]) == ("unknown", []), said


def test_a_job_goes_on_when_the_head_is_killed(clean: Hosts, tmp_path: Path) -> None:
    job = NodesRecording(clean, tmp_path, "endless")
    job.until_far()
    assert clean[0].kill_by_name("distdoctor record") == 1
    time.sleep(12)  # longer than a node waits for the head
    job.goes_on()
    report = autopsy_of(job.record)
    assert (report["verdict"], report["findings"]) == ("unknown", [])
    job.ask_to_stop()
    assert job.joined.wait(LOST_S) == 0, job.said()
    assert "does not have all" in job.said()


def test_a_job_goes_on_when_a_node_is_lost(clean: Hosts, tmp_path: Path) -> None:
    job = NodesRecording(clean, tmp_path, "endless")
    job.until_far()
    assert clean[1].kill_by_name("distdoctor join") == 1
    time.sleep(12)
    job.goes_on()
    job.ask_to_stop()
    assert job.head.wait(LOST_S) == 0, job.said()
    report, said = autopsy_of(job.record), job.said()
    assert (report["verdict"], report["findings"]) == ("unknown", []), said
    gaps = json.dumps(report["not_examined"])
    assert "its node hostb was lost while other ranks went on" in gaps, gaps


def test_a_connection_that_comes_back_loses_nothing(
    clean: Hosts, tmp_path: Path
) -> None:
    job = NodesRecording(clean, tmp_path, "endless")
    job.until_far()
    clean[1].cut()
    time.sleep(12)
    clean[1].mend()
    job.goes_on()
    job.ask_to_stop()
    assert job.statuses() == (0, 0), job.said()
    report, said = autopsy_of(job.record), job.said()
    assert (report["verdict"], report["findings"]) == ("well", []), said


STARTS = """
import os
assert "DISTDOCTOR_RUN" not in os.environ
"""


def test_ranks_that_do_not_reach_the_head_go_on_after_one_wait(tmp_path: Path) -> None:
    head = HeadText("127.0.0.1:9", "ab12", "elsewhere", sys.executable)
    variables = {
        **os.environ,
        "PYTHONPATH": str(NEEDLE),
        "TMPDIR": str(tmp_path),
        FOLDER_VARIABLE: str(tmp_path / "record"),
        HEAD_VARIABLE: head.written(),
        TOKEN_VARIABLE: TOKEN,
        RECORD_VARIABLE: "1",
    }
    begun = time.monotonic()
    ranks = [
        subprocess.Popen([sys.executable, "-c", STARTS], env=variables)
        for _ in range(4)
    ]
    assert [rank.wait(LOST_S) for rank in ranks] == [0] * 4
    assert time.monotonic() < begun + 2 * 15  # one waits, and the others with it
    assert [*tmp_path.glob("distdoctor-*")] == []
