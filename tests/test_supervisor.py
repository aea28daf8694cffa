"""The supervisor's proof: what it may be founded on while ranks come and go."""

import os
import time
from pathlib import Path

import pytest

from distdoctor.journal import Kind, group_text, offset_of
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch.supervisor import Plan, Progress, Stop, _Supervisor
from distdoctor.model.events import SETUP
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP

ME = os.getpid()
ANOTHER = os.getppid()  # a process that lives, too
NOBODY = 2**22 + 1  # above the largest number of a process


class Nobody:
    """Who does not listen."""

    def output(self, stream: str, line: bytes) -> None:
        """Drop it."""

    def progress(self, progress: Progress) -> None:
        """Drop it."""


def begins(folder: Path, rank: int, pid: int) -> JournalWriter:
    """A rank of two that has a journal, and nothing in it."""
    writer = JournalWriter(folder, rank, 2, 64 * 1024)
    with writer.path.open("r+b") as file:
        file.seek(offset_of("pid"))
        file.write(pid.to_bytes(4, "little"))
    return writer


def joins(folder: Path, rank: int, pid: int) -> None:
    """A rank that waits for the other to join the job."""
    writer = begins(folder, rank, pid)
    group = writer.intern(group_text(SETUP, "init", 0, (0, 1)))
    code = CODE_OF["init_process_group"]
    site = writer.intern("/home/user/t.py\n3\n<module>")
    writer.put(
        Kind.ENTER, pid, 1, 1, group, 0, code, NO_REDUCE_OP, 0, site, writer.intern("")
    )


@pytest.fixture
def supervisor(tmp_path: Path) -> _Supervisor:
    """Of a job whose rank 0 waits for rank 1 to join."""
    plan = Plan(
        command=[], script="t.py", directory=tmp_path, folder=tmp_path, ranks=2,
        budget_s=9.0,
    )  # fmt: skip
    supervisor = _Supervisor(plan, Nobody())
    joins(tmp_path, 0, ME)
    pulse = supervisor.pulse
    pulse.discover()
    while pulse.looks_without_news < 2:
        pulse.update()
    assert pulse.is_suspicious()
    return supervisor


def proof(supervisor: _Supervisor) -> str:
    """What is proved within as many looks as a standstill of this size needs."""
    for _ in range(100):
        supervisor.pulse.update()
        if proved := supervisor._proved():
            return proved
        time.sleep(0.004)
    return ""


def test_a_rank_that_ended_is_waited_for_in_vain(
    supervisor: _Supervisor, tmp_path: Path
) -> None:
    begins(tmp_path, 1, NOBODY)
    assert proof(supervisor) == Stop.DEADLOCK


def test_a_rank_that_came_after_the_last_look_has_not_ended(
    supervisor: _Supervisor, tmp_path: Path
) -> None:
    begins(tmp_path, 1, ANOTHER)
    assert proof(supervisor) == ""


def test_a_rank_that_comes_during_the_proof_has_not_ended(
    supervisor: _Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = supervisor._alive

    def then_one_comes() -> list[int]:
        alive = still()
        if not any(tmp_path.glob("rank-1*")):
            begins(tmp_path, 1, ANOTHER)
        return alive

    monkeypatch.setattr(supervisor, "_alive", then_one_comes)
    assert proof(supervisor) == ""
