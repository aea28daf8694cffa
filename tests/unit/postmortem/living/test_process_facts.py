"""What Linux tells of processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdoctor.postmortem.living.process_facts import exit_status_of, facts_of


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
    ],
)
def test_the_end_of_a_process_that_nobody_has_buried_is_read(
    program: str, status: int
) -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert exit_status_of(process.pid) == status
        assert facts_of(process.pid).state == "Z"
    finally:
        process.wait(timeout=10)
    assert exit_status_of(process.pid) is None


def test_a_process_that_waits_for_a_file_says_which(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = "import os, sys; os.read(os.open(sys.argv[1], os.O_RDWR), 1)"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program, str(fifo)])
    try:
        end = time.monotonic() + 30
        while not (facts := facts_of(process.pid)).call:
            assert time.monotonic() < end
            time.sleep(0.05)
        if os.uname().machine == "x86_64":
            assert facts.call == f"read() of {fifo}"
        assert facts.state == "S"
        assert facts.memory_bytes > 0
        before = facts_of(process.pid).threads[process.pid]
        time.sleep(0.2)
        assert facts_of(process.pid).threads[process.pid] == before
    finally:
        process.kill()
        process.wait(timeout=10)


def test_of_a_process_that_is_not_there_nothing_is_known() -> None:
    facts = facts_of(2**22 + 17)
    assert facts.state == ""
    assert not facts.threads
