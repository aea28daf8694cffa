"""What a job prints: passed on while somebody hears it, and never in the job's way."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from distdoctor.launch.supervisor import JobProgress, _Pumps

DEADLINE_S = 60.0  # for a Python without torch on a busy machine

TALKS = "for n in range(20_000): print('a line of the log', n)"  # no pipe holds so much


class Audience:
    """Hears some lines, and then fails."""

    def __init__(self, error: OSError, after: int = 3) -> None:
        self.error, self.left = error, after

    def output(self, _stream: str, _line: bytes) -> None:
        """Hear a line."""
        self.left -= 1
        if self.left < 0:
            raise self.error

    def progress(self, progress: JobProgress) -> None:
        """See nothing."""


def ran(error: OSError) -> _Pumps:
    """The pumps of a job that has ended, and how it did; an audience failed them."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", TALKS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        tree: Any = SimpleNamespace(root=process)
        pumps = _Pumps(tree, Audience(error))
        assert process.wait(DEADLINE_S) == 0
        pumps.close()
    return pumps


def test_a_full_disk_under_the_output_lets_the_job_go_on() -> None:
    pumps = ran(OSError(errno.ENOSPC, "No space left on device"))
    assert pumps.last_words(of_a_rank=False) == "a line of the log 19999"
    (remark,) = pumps.remarks
    assert "stdout could not be passed on (No space left on device)" in remark
    assert not pumps.unread


def test_a_reader_that_goes_away_is_noticed_and_the_job_goes_on() -> None:
    pumps = ran(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert pumps.last_words(of_a_rank=False) == "a line of the log 19999"
    assert (pumps.unread, pumps.remarks) == (True, [])


def explained(redirection: str) -> tuple[int, str]:
    command = (
        f"set -o pipefail; {sys.executable} -m distdoctor explain DD101 {redirection}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stderr


def test_nothing_is_said_where_nobody_reads() -> None:
    assert explained("| true") in {(141, ""), (0, "")}  # it may have been quicker


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")  # noqa: PTH110
def test_a_full_disk_under_the_report_is_no_fault_of_ours() -> None:
    status, stderr = explained("> /dev/full")
    assert status == 2
    assert stderr == "distdoctor: [Errno 28] No space left on device\n"
