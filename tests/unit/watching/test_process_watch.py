"""Looks at a job that distdoctor did not start: what they tell, and what they cost."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
from living_jobs import FIRST_PID, Acts, waits, watched

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.living.dump_taking import REFUSED
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.living.looks import JobLook
from distdoctor.watching import process_watch as module
from distdoctor.watching.plain_snapshot import as_plain
from distdoctor.watching.process_watch import ProcessWatch
from distdoctor.watching.snapshot import JobState, RankDoing


def looked_at(acts: Sequence[Acts], looks: int) -> tuple[LivingJob, list[JobLook]]:
    """A made-up job, and looks at it."""
    command = ("python", "-u", "t.py")
    processes = {
        rank: LivingProcess(FIRST_PID + rank, 1, command=command, directory="/job")
        for rank in range(len(acts))
    }
    return LivingJob(processes, len(acts)), watched(dict(enumerate(acts)), looks)


Watching = Callable[..., ProcessWatch]


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """Makes a watch of a made-up job, whose looks are the given ones."""

    def made(*acts: Acts, looks: int = 3) -> ProcessWatch:
        job, given = looked_at(acts, looks)
        left: Iterator[JobLook] = iter(given)
        monkeypatch.setattr(module, "jobs_of", lambda _: [job])
        monkeypatch.setattr(module, "look", lambda *_, **__: next(left))
        return ProcessWatch([1])

    return made


WAITS = waits(at="train t.py:9")
SLEEPS = Acts(["train t.py:12"], call="sleep()")


def test_one_look_claims_no_more_than_where_a_rank_is(watching: Watching) -> None:
    seen = watching(WAITS, SLEEPS).look()
    assert [one.doing for one in seen.ranks] == [RankDoing.IN_CALL, RankDoing.OWN_CODE]
    assert [one.since_s for one in seen.ranks] == [None, None]


def test_looks_tell_who_waits(watching: Watching) -> None:
    job = watching(WAITS, SLEEPS)
    job.look()
    seen = job.look()
    assert seen.ranks[0].doing is RankDoing.WAITING
    assert seen.ranks[0].call is not None
    assert seen.ranks[0].call.op == "all_reduce"
    assert seen.ranks[0].call.place == "t.py:9"
    assert seen.ranks[1].doing is RankDoing.OWN_CODE  # not stuck: too short a time
    assert seen.waits == []
    assert seen.proof is None
    assert "distdoctor autopsy 1" in seen.remarks[-1]


def test_two_looks_do_not_tell_since_when(watching: Watching) -> None:
    job = watching(WAITS, SLEEPS)
    job.look()
    seen = job.look()
    assert [one.since_s for one in seen.ranks] == [None, None]
    assert "since" not in as_plain(seen)
    seen = job.look()
    assert all(one.since_s is not None for one in seen.ranks)


def test_what_may_not_be_read_says_what_to_do(watching: Watching) -> None:
    refused = Acts(["train t.py:9"], refused=REFUSED)
    job = watching(refused, refused)
    job.look()
    seen = job.look()
    assert {one.doing for one in seen.ranks} == {RankDoing.UNREADABLE}
    assert "2 of 2 ranks; to permit it: " in seen.remarks[0]
    assert "ptrace" in as_plain(seen)


def test_a_job_that_ends_is_over(watching: Watching) -> None:
    seen = watching(Acts(["train t.py:9"], state="Z")).look()
    assert seen.job.state is JobState.OVER
    assert seen.job.alive == 0
    assert seen.ranks[0].doing is RankDoing.ENDED


def test_dear_looks_are_taken_more_seldom(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = watching(WAITS)
    clock: Iterator[float] = iter([10.0, 12.0, 12.0, 12.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    assert job.look().every_s == 20.0


def test_processes_are_not_held_still(monkeypatch: pytest.MonkeyPatch) -> None:
    job, given = looked_at((WAITS,), 1)
    asked: list[bool] = []

    def look(*_: Sequence[int], holds_still: bool) -> JobLook:
        asked.append(holds_still)
        return given[0]

    monkeypatch.setattr(module, "jobs_of", lambda _: [job])
    monkeypatch.setattr(module, "look", look)
    ProcessWatch([1]).look()
    assert asked == [False]


def test_a_process_that_is_gone_is_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(LeavingsMissing, match=f"no process {child.pid}"):
        ProcessWatch([child.pid])


def test_a_stack_stands_for_last_calls(watching: Watching) -> None:
    job = watching(WAITS)
    assert job.last_calls(0) == []
    job.look()
    assert job.last_calls(0)[-1] == "train  /job/t.py:9"
    assert job.last_calls(99) == []


def test_who_stands_in_his_own_code_for_long_is_told(watching: Watching) -> None:
    job = watching(SLEEPS, looks=8)
    told = [job.look().ranks[0].doing for _ in range(4)]
    assert told[1] is RankDoing.OWN_CODE
    assert RankDoing.STANDING not in told[:3]
