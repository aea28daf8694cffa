"""What a job prints: passed on while somebody hears it, and never in the job's way."""

import errno
import os
import pty
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from distdoctor.journal.environment import OUTPUT_VARIABLE
from distdoctor.launch import output_pump
from distdoctor.launch.audience import JobProgress, Surface
from distdoctor.launch.output_channels import OutputChannels
from distdoctor.launch.output_pump import OutputPump

DEADLINE_S = 60.0  # for a Python without torch on a busy machine

TALKS = "for n in range(20_000): print('a line of the log', n)"  # no pipe holds so much

AS_A_RANK = """
import os, sys
from distdoctor.probes import rank_output
rank_output.take_over(int(sys.argv[1]))
"""


class Listener:
    """An audience that keeps what it hears.

    Args:
        surface: What it says that output ends on.
        fails: Called before it hears anything.
    """

    def __init__(
        self, surface: Surface | None = None, fails: Callable[[], object] = bool
    ) -> None:
        self.surface = surface or Surface()
        self._fails = fails
        self.heard = {"stdout": b"", "stderr": b""}
        self.states: list[list[bytes]] = []

    def output(self, stream: str, text: bytes) -> None:
        """Hear some lines."""
        self._fails()
        self.heard[stream] += text

    def unfinished(self, lines: list[bytes]) -> None:
        """See bars."""
        self.states.append(lines)

    def progress(self, progress: JobProgress) -> None:
        """See nothing."""


class Started:
    """A job of Python programs, each of which may be a rank."""

    def __init__(self, audience: Listener, ranks: int = 0) -> None:
        marks = [f"[rank{rank}]:" for rank in range(ranks)]
        self.channels = OutputChannels(audience.surface, rank_marks=marks)
        self.pump = OutputPump(self.channels, audience)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, program: str, rank: int | None = None) -> subprocess.Popen[bytes]:
        """Start a program, as a rank or as what the job's command is."""
        stdout, stderr = (channel.writing for channel in self.channels.own)
        start = "" if rank is None else AS_A_RANK
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", start + program, str(rank)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | {OUTPUT_VARIABLE: self.channels.variable},
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Wait for all, and close the channels."""
        for process in self.processes:
            process.communicate(timeout=DEADLINE_S)
        self.pump.close()


def ran(audience: Listener, *programs: str, ranks: int = 0) -> OutputPump:
    """The pump of a job that has ended: of ranks, or of a command alone."""
    job = Started(audience, ranks)
    for number, program in enumerate(programs):
        job.start(program, number if ranks else None)
    job.end()
    assert [process.returncode for process in job.processes] == [0] * len(programs)
    return job.pump


def until(holds: Callable[[], object]) -> None:
    """Wait for something that is to happen."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def terminal(columns: int) -> Iterator[int]:
    """A terminal of this width."""
    ends = pty.openpty()
    termios.tcsetwinsize(ends[1], (24, columns))
    yield ends[1]
    for end in ends:
        os.close(end)


# --- whoever hears it -----------------------------------------------------------------


def fails_later(error: OSError) -> Callable[[], None]:
    left = [3]

    def fail() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error

    return fail


def test_a_full_disk_under_the_output_lets_the_job_go_on() -> None:
    full = fails_later(OSError(errno.ENOSPC, "No space left on device"))
    pump = ran(Listener(fails=full), TALKS)
    assert pump.last_words.text(of_a_rank=False) == "a line of the log 19999"
    (remark,) = pump.remarks
    assert "stdout could not be passed on (No space left on device)" in remark
    assert not pump.unread


def test_a_reader_that_goes_away_is_noticed_and_the_job_goes_on() -> None:
    gone = fails_later(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    pump = ran(Listener(fails=gone), TALKS)
    assert pump.last_words.text(of_a_rank=False) == "a line of the log 19999"
    assert (pump.unread, pump.remarks) == (True, [])


def test_a_reader_that_stands_still_stops_no_job_and_is_told_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_pump, "STALL_S", 0.3)
    monkeypatch.setattr(output_pump, "MOST_HELD", 200_000)
    reads = threading.Event()
    audience = Listener(fails=reads.wait)
    job = Started(audience)
    assert job.start(f"{TALKS}\n{TALKS}").wait(DEADLINE_S) == 0
    assert job.pump._size < 400_000
    reads.set()
    until(lambda: not job.pump._size)
    job.start("print('the end')")
    job.end()
    (remark,) = job.pump.remarks
    out = audience.heard["stdout"]
    lost = int(remark.split()[0])
    assert f"[distdoctor: {lost} bytes left out here]\nthe end\n".encode() in out
    assert "nobody read them" in remark


def test_a_reader_that_never_comes_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_pump, "STALL_S", 0.3)
    reads = threading.Event()
    pump = ran(Listener(fails=reads.wait), "print('unheard')")
    reads.set()
    (remark,) = pump.remarks
    assert remark.startswith("8 bytes of what the job wrote were left out")


# --- whose it is ----------------------------------------------------------------------

BOTH = "for n in range(200): print('out', n); print('err', n, file=sys.stderr)"


def test_lines_carry_the_mark_of_their_rank_and_keep_their_order() -> None:
    audience = Listener(Surface(joined=True))
    pump = ran(audience, BOTH, BOTH, ranks=2)
    lines = audience.heard["stdout"].decode().splitlines()
    words = [f"{stream} {n}" for n in range(200) for stream in ("out", "err")]
    for rank in range(2):
        mark = f"[rank{rank}]:"
        own = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        assert own == words
    assert pump.last_words.text(of_a_rank=True) == "err 199"


def test_streams_stay_apart_where_they_end_apart() -> None:
    audience = Listener()
    ran(audience, "print('a'); print('b', file=sys.stderr)", ranks=1)
    assert audience.heard == {"stdout": b"[rank0]:a\n", "stderr": b"[rank0]:b\n"}


def test_what_a_rank_starts_writes_as_the_rank_and_what_it_captures_is_its_own() -> (
    None
):
    audience = Listener()
    again = AS_A_RANK + "print('child')"
    program = f"""
import subprocess
print("is", "{OUTPUT_VARIABLE}" in os.environ)
os.system("echo shell")
variables = {{**os.environ, "{OUTPUT_VARIABLE}": given}}
child = [sys.executable, "-c", {again!r}, "0"]
print("captured", subprocess.check_output(child, env=variables))
"""
    job = Started(audience, 1)
    job.start(f"given = {job.channels.variable!r}\n" + program, 0)
    job.end()
    assert audience.heard["stdout"].splitlines() == [
        b"[rank0]:is False",
        b"[rank0]:shell",
        b"[rank0]:captured b'child\\n'",
    ]


def test_a_launcher_that_reads_its_ranks_is_passed_by() -> None:
    channels = OutputChannels(Surface(), rank_marks=["[rank0]:"], launcher_pipes=True)
    done = subprocess.run(
        [sys.executable, "-c", AS_A_RANK + "print('here')", "0"],
        env=os.environ | {OUTPUT_VARIABLE: channels.variable},
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    channels.stop_writing()
    assert os.read(channels.ranks[0][0].reading, 99) == b"here\n"
    assert done.stdout == b""
    channels.close()


@pytest.mark.parametrize("variable", ["", "x", "1", "{pid} 0:0 0:0 0:0:0 999:1:1"])
def test_a_rank_without_channels_writes_where_it_was_started(variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_A_RANK + "print('here')", "0"],
        env=os.environ | {OUTPUT_VARIABLE: variable.format(pid=os.getpid())},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert (done.stdout, done.stderr) == ("here\n", "")


def test_ranks_are_told_apart_as_far_as_files_can_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [5]

    def pipe() -> tuple[int, int]:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return made()

    made = os.pipe
    monkeypatch.setattr(os, "pipe", pipe)
    channels = OutputChannels(Surface(), rank_marks=["a", "b"])
    monkeypatch.undo()
    assert (channels.variable, channels.failed) == ("", "Too many open files")
    channels.close()


# --- lines without an end -------------------------------------------------------------


def test_a_line_without_end_takes_little_memory_and_is_whole() -> None:
    audience = Listener()
    job = Started(audience, 1)
    job.start("for _ in range(300): os.write(1, b'y' * 65_536)", 0)
    until(lambda: len(audience.heard["stdout"]) > 250 * 65_536)  # and not at its end
    assert sum(len(line.held) for line in job.pump._lines.values()) <= 65_536
    job.end()
    assert audience.heard["stdout"] == b"[rank0]:" + b"y" * 300 * 65_536


BAR = """
for n in range(0, 101, 10):
    sys.stderr.write(f"\\r{n}%"); sys.stderr.flush()
    if n == 50: sys.stdin.readline()
sys.stderr.write("\\n")
"""


def test_bars_move_in_a_pipe() -> None:
    audience = Listener()
    job = Started(audience, 1)
    process = job.start(BAR, 0)
    until(lambda: audience.heard["stderr"].endswith(b"\r40%"))
    job.end()
    assert process.returncode == 0
    whole = b"".join(b"\r%d%%" % n for n in range(0, 101, 10)) + b"\n"
    assert audience.heard["stderr"] == b"[rank0]:" + whole


def test_a_bar_that_is_interrupted_goes_on_in_a_line_of_its_own() -> None:
    audience = Listener(Surface(joined=True))
    job = Started(audience, 2)
    job.start(BAR, 0)
    until(lambda: audience.heard["stdout"].endswith(b"\r40%"))
    job.start("print('between')", 1)
    until(lambda: audience.heard["stdout"].endswith(b"between\n"))
    job.end()
    _, between, rest = audience.heard["stdout"].decode().partition("[rank1]:between\n")
    assert (between, rest[:13]) == ("[rank1]:between\n", "[rank0]:\r50%\r")
    assert "\r40%\n[rank1]" in audience.heard["stdout"].decode()


def test_bars_of_a_terminal_are_shown_by_their_state() -> None:
    with terminal(100) as number:
        surface = Surface(terminals={"stderr": number}, redrawn=True)
        audience = Listener(surface)
        job = Started(audience, 1)
        job.start(BAR, 0)
        until(lambda: [b"[rank0]:50%"] in audience.states)
        job.end()
    assert audience.heard["stderr"] == b"[rank0]:100%\n"
    assert audience.states[-1] == []


def test_a_rank_finds_a_terminal_where_the_user_has_one() -> None:
    looks = (
        "print(os.isatty(1), os.isatty(2), os.get_terminal_size(1).columns);"
        "os.write(1, b'a\\tb\\n')"
    )
    with terminal(100) as number:
        audience = Listener(Surface(terminals={"stdout": number}))
        job = Started(audience, 1)
        job.start(looks, 0)
        until(lambda: b"b\n" in audience.heard["stdout"])
        termios.tcsetwinsize(number, (24, 60))
        job.channels.resize()
        job.start(looks, 0)
        job.end()
    marks = b"[rank0]:True False %d\n[rank0]:a\tb\n"
    assert audience.heard["stdout"] == marks % 92 + marks % 52


# --- the end --------------------------------------------------------------------------


def test_a_daemon_that_keeps_the_output_is_not_waited_for() -> None:
    audience = Listener()
    job = Started(audience, 1)
    process = job.start("print('up'); sys.stdin.readline()", 0)
    until(lambda: audience.heard["stdout"])
    begun = time.monotonic()
    job.pump.close()
    assert time.monotonic() < begun + DEADLINE_S / 2
    process.communicate(timeout=DEADLINE_S)


def test_who_writes_is_told_when_nobody_is_there_any_more() -> None:
    job = Started(Listener(), 1)
    process = job.start("sys.stdin.readline(); os.write(1, b'x')", 0)
    job.pump.close()
    process.communicate(b"\n", timeout=DEADLINE_S)
    assert process.returncode == 1


# --- the report -----------------------------------------------------------------------


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
