"""Tests on ranks that hang, die or diverge: they fail in time, and say why."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import plugin_sessions as sessions
import pytest
from plugin_sessions import DEADLINE_S, Session

TESTS = """\
import ctypes, os, signal, subprocess, sys, time
import pytest, torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(2)

def test_deadlock(rank):
    print("said before", rank)
    if rank == 1:
        dist.barrier()

def test_mismatch(rank):
    dist.all_reduce(torch.ones(2 + rank))

@pytest.mark.ranks(2, timeout=2)
def test_ignores_sigterm(rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if rank == 0:
        dist.barrier()
    while True:
        time.sleep(0.1)

@pytest.mark.ranks(2, timeout=2)
def test_holds_the_lock_in_c(rank):
    if rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    dist.barrier()

def test_stopped(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()

def test_killed(rank):
    print("said before", rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def test_leaves(rank):
    if rank == 1:
        os._exit(3)
    dist.barrier()

def test_crashes(rank):
    if rank == 1:
        ctypes.string_at(0)
    dist.barrier()

@pytest.mark.ranks(2, timeout=2)
def test_for_ever():
    while True:
        pass

@pytest.mark.ranks(2, timeout=2)
@pytest.mark.distdoctor(watch=False)
def test_nobody_watches(rank):
    if rank == 1:
        dist.barrier()

def test_one_raises(rank):
    if rank == 1:
        raise ValueError("mine")
    dist.barrier()

@pytest.mark.xfail
def test_expected_to_hang(rank):
    if rank == 1:
        dist.barrier()

@pytest.fixture
def late():
    yield
    if dist.get_rank() == 1:
        dist.barrier()

def test_hangs_in_teardown(late):
    pass

def test_well(rank):
    dist.barrier()
"""


def line(text: str) -> int:
    """Number of the line of TESTS that comes first after the one given, or is it."""
    return TESTS[: TESTS.index(text)].count("\n") + 1


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """All of these, one after the other, in one session."""
    return sessions.run(tmp_path_factory.mktemp("hangs"), TESTS)


def test_a_proven_deadlock_fails_at_once(session: Session) -> None:
    reported = session.tests["test_deadlock"]
    at = line("        dist.barrier()\n\ndef test_mismatch")
    assert reported.outcome == "failed"
    assert reported.seconds < 5
    assert (
        reported.message == f"DD108 skipped collective: rank 1 at test_it.py:{at - 1}"
    )
    assert reported.properties == ["DD108 rank 1"]
    for part in (
        "SICK   DD108",
        "cure ",
        f"rank 1\n  test_it.py:{at} test_deadlock",  # its stack
        "kept in",
    ):
        assert part in reported.text


def test_what_was_printed_before_a_hang_is_shown(session: Session) -> None:
    for name in ("test_deadlock", "test_killed"):
        own = session.output.partition(f"_ {name} _")[2].partition("\n___")[0]
        assert re.search("rank 1, which did not end -+\nsaid before 1", own)


def test_the_record_of_a_failure_is_kept_and_named(session: Session) -> None:
    folder = session.tests["test_deadlock"].text.partition("kept in ")[2].split()[0]
    assert (Path(folder) / "run.json").exists()


def test_a_mismatch_is_refused(session: Session) -> None:
    reported = session.tests["test_mismatch"]
    assert reported.outcome == "failed"
    assert reported.message.startswith("DD102")
    assert reported.seconds < 5


def test_who_ignores_sigterm_is_ended_all_the_same(session: Session) -> None:
    reported = session.tests["test_ignores_sigterm"]
    assert reported.outcome == "failed"
    assert "timeout of 2 s" in reported.message
    at = line("        time.sleep(0.1)")
    assert f"rank 1 stood at test_it.py:{at}" in reported.message


def test_who_holds_the_interpreter_in_c_is_ended(session: Session) -> None:
    reported = session.tests["test_holds_the_lock_in_c"]
    assert reported.outcome == "failed"
    assert "timeout of 2 s" in reported.message
    at = line("        ctypes.PyDLL(None).sleep(1000)")
    assert f"rank 1 stood at test_it.py:{at}" in reported.message


def test_who_was_stopped_is_named_and_ended(session: Session) -> None:
    reported = session.tests["test_stopped"]
    assert reported.outcome == "failed"
    assert reported.message.startswith("rank 1 was stopped by a signal (SIGSTOP)")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("test_killed", "rank 1 was killed by SIGKILL"),
        ("test_leaves", "rank 1 left with exit code 3"),
        ("test_crashes", "rank 1 was killed by SIGSEGV"),
    ],
)
def test_a_death_is_told_with_its_status(session: Session, name: str, how: str) -> None:
    reported = session.tests[name]
    assert reported.outcome == "failed"
    assert how in reported.message
    assert reported.seconds < 5


def test_last_words_of_the_dead_are_shown(session: Session) -> None:
    assert "Fatal Python error: Segmentation fault" in session.output


def test_a_loop_without_end_ends_at_the_timeout(session: Session) -> None:
    reported = session.tests["test_for_ever"]
    assert reported.outcome == "failed"
    assert "did not end within its timeout of 2 s; ranks {0-1}" in reported.message
    assert "where the ranks stood" in reported.text


def test_unwatched_ranks_are_ended_at_the_timeout(session: Session) -> None:
    reported = session.tests["test_nobody_watches"]
    assert reported.outcome == "failed"
    assert "timeout of 2 s; rank 1 had not ended" in reported.message
    assert reported.properties == []


def test_the_one_that_raised_is_shown_not_those_that_wait(session: Session) -> None:
    reported = session.tests["test_one_raises"]
    assert reported.message == "ValueError: mine"
    assert 'raise ValueError("mine")' in reported.text
    assert reported.properties == ["DD202 rank 1"]


def test_a_hang_may_be_expected(session: Session) -> None:
    assert session.tests["test_expected_to_hang"].outcome == "skipped"


def test_a_hang_in_teardown_is_an_error(session: Session) -> None:
    reported = session.tests["test_hangs_in_teardown"]
    assert reported.outcome == "error"
    assert "DD108" in reported.message


def test_the_next_test_finds_healthy_ranks(session: Session) -> None:
    assert session.tests["test_well"].outcome == "passed"


def test_nothing_is_left(
    session: Session, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert session.status == pytest.ExitCode.TESTS_FAILED
    assert session.left == []
    assert sessions.files_of(tmp_path_factory.getbasetemp() / "hangs0") == []


HANGS = """\
import os, pathlib, subprocess, time
import pytest, torch.distributed as dist

@pytest.mark.ranks(2)
def test_slow(rank):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    pathlib.Path(f"there-{rank}").touch()
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name
)
def test_nothing_outlives_pytest(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = subprocess.Popen(
        sessions.command(),
        cwd=tmp_path,
        env=sessions.environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=sessions.hear_interrupts,
    )
    try:
        for rank in range(2):
            sessions.wait_for(tmp_path, f"there-{rank}")
        assert (
            len(sessions.left_of(tmp_path)) >= 5
        )  # the zygote, ranks, what they started
        os.kill(process.pid, number)
        process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    end = time.monotonic() + 60
    while sessions.left_of(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert sessions.left_of(tmp_path) == []
    assert sessions.files_of(tmp_path) == []
