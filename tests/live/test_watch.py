"""`distdoctor watch` beside real jobs, and on a real pseudo-terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from written_records import written

PATIENCE_S = 120.0

PROGRAM = (sys.executable, "-m", "distdoctor")

HANGS = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
loss = torch.ones(4)
for step in range(20):
    dist.all_reduce(loss)
if dist.get_rank() == 1:
    time.sleep(300)
dist.all_reduce(loss)
"""

TRAINS = """
import hashlib, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(1 + dist.get_rank())
for step in range(150):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.04)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("weights", dist.get_rank(), hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
"""


@contextmanager
def job(folder: Path, script: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A job that is ended with the block."""
    (folder / "train.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def once(*arguments: str) -> dict[str, Any]:
    """One look, as JSON."""
    done = subprocess.run(
        [*PROGRAM, "watch", "--once", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        return {"error": done.stderr, "ranks": [], "waits": []}
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def until(
    look: Callable[[], dict[str, Any]], holds: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Look until something holds; the last look."""
    end = time.monotonic() + PATIENCE_S
    while True:
        told = look()
        if holds(told) or time.monotonic() > end:
            return told
        time.sleep(0.5)


def test_a_job_that_hangs_under_check_is_seen_to_wait(tmp_path: Path) -> None:
    check = ("-m", "distdoctor", "check", "train.py", "--record", "kept")
    with job(tmp_path, HANGS, *check) as process:
        folder = str(tmp_path / "kept")
        told = until(lambda: once(folder), lambda one: one["waits"])
        assert [(w["ranks"], w["on"]) for w in told["waits"]] == [([0], [1])]
        assert told["waits"][0]["call"]["ordinal"] == 21
        assert told["waits"][0]["call"]["place"] == "train.py:9"
        assert [one["doing"] for one in told["ranks"]] == ["waiting", "own code"]
        assert told["job"]["by"] == "check"
        assert told["job"]["alive"] == 2
        assert told["job"]["budget_s"] == 120.0
        assert told["proof"] is None  # rank 1 may yet come
        from distdoctor.watching.running_records import running_records

        found = [one for one in running_records() if one.folder == Path(folder)]
        assert [one.pid for one in found] == [process.pid]
    told = once(folder)
    assert told["job"]["state"] == "over"
    assert told["job"]["alive"] == 0


def test_a_job_without_distdoctor_is_looked_at_by_its_process(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    with job(tmp_path, HANGS, *torchrun, "train.py") as process:
        pid = str(process.pid)

        def waits(one: dict[str, Any]) -> bool:
            return "waiting" in [rank["doing"] for rank in one["ranks"]]

        told = until(lambda: once(pid), waits)
        if any("ptrace" in remark for remark in told.get("remarks", ())):
            pytest.skip("stacks of others may not be read here")
        first, second = told["ranks"]
        assert first["doing"] == "waiting"
        assert first["call"]["op"] == "all_reduce"
        assert first["call"]["place"] == "train.py:9"
        assert second["call"]["place"] == "train.py:8"
        assert told["job"]["folder"] == ""
        assert told["proof"] is None
        assert process.poll() is None
    assert "there is no process" in once(pid)["error"]


class Terminal:
    """A program on a pseudo-terminal of 80 × 24."""

    def __init__(self, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        size = struct.pack("HHHH", 24, 80, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.process = subprocess.Popen(
            [*PROGRAM, "watch", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.written = b""

    def read_until(self, text: str) -> None:
        """Read until a text was written."""
        end = time.monotonic() + PATIENCE_S
        while text.encode() not in self.plain() and time.monotonic() < end:
            self.read(0.2)
        assert text.encode() in self.plain(), self.plain()[-2000:]

    def read(self, seconds: float) -> None:
        """Read what is there."""
        if select.select([self.ours], [], [], seconds)[0]:
            with suppress(OSError):
                self.written += os.read(self.ours, 1 << 16)

    def plain(self) -> bytes:
        """What was written, without its sequences."""
        return re.sub(rb"\x1b\[[0-9;?<=>]*[a-zA-Z]", b"", self.written)

    def type(self, text: str) -> None:
        """Type."""
        os.write(self.ours, text.encode())

    def status(self) -> int:
        """Its exit status, when it has ended."""
        end = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        assert self.process.returncode is not None
        self.read(0.1)
        return self.process.returncode

    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its modes, and its first screen."""
        left = self.written.rfind(b"\x1b[?1049l")
        entered = self.written.rfind(b"\x1b[?1049h")
        return termios.tcgetattr(self.theirs) == self.before and 0 <= entered < left

    def close(self) -> None:
        """End all."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for number in (self.ours, self.theirs):
            with suppress(OSError):
                os.close(number)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """The screen of a job that stands still: this process plays its ranks."""
    folder = tmp_path / "record"
    ranks = written(folder, 4)
    for one in ranks:
        one.call()
    for one in ranks[1:]:
        one.call(until="waiting", line=9)
    (folder / "running.lock").touch()
    shown = Terminal(str(folder))
    shown.read_until("4 of 4 ranks alive")
    yield shown
    shown.close()


def test_keys_work_on_a_terminal_and_it_is_restored(terminal: Terminal) -> None:
    terminal.read_until("rank 0: in its own code")
    terminal.type("s")
    terminal.read_until("by rank")
    terminal.type("/")
    terminal.read_until("ranks (0-7,12), or a word")
    terminal.type("2")
    terminal.read_until("only '2'")
    terminal.type("\r")
    time.sleep(1.0)
    terminal.type("\r")
    terminal.read_until("train.py:9 in main")
    terminal.type("q")
    terminal.read(1.0)
    time.sleep(1.0)
    terminal.type("q")
    assert terminal.status() == 0
    assert terminal.is_restored()
    assert not _left_of(terminal)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it_and_the_terminal_is_restored(
    terminal: Terminal, number: int, status: int
) -> None:
    terminal.process.send_signal(number)
    assert terminal.status() == status
    assert terminal.is_restored()


def test_ctrl_c_ends_it(terminal: Terminal) -> None:
    terminal.type("\x03")
    assert terminal.status() == 130
    assert terminal.is_restored()


def test_a_terminal_that_is_closed_ends_it(terminal: Terminal) -> None:
    os.close(terminal.theirs)
    os.close(terminal.ours)
    assert terminal.process.wait(30) in {129, -signal.SIGHUP}


def test_no_colour_is_drawn_where_none_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    written(tmp_path / "r", 2)[0].call()
    shown = Terminal(str(tmp_path / "r"))
    try:
        shown.read_until("ranks alive")
        shown.type("q")
        assert shown.status() == 0
        colours = re.findall(rb"38;2;(\d+);(\d+);(\d+)", shown.written)
        assert all(red == green == blue for red, green, blue in colours)
    finally:
        shown.close()


def _left_of(terminal: Terminal) -> list[psutil.Process]:
    """Processes of its session that live."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == terminal.process.pid:
                found.append(process)
    return found


def _fingerprints(folder: Path, *, watched: bool) -> list[str]:
    """What the ranks print of their weights, with a watcher beside them or without."""
    folder.mkdir()
    check = ("-m", "distdoctor", "check", "train.py", "--budget", "300")
    with job(folder, TRAINS, *check, "--record", "kept") as process:
        shown = None
        if watched:
            while not (folder / "kept" / "run.json").exists():
                assert process.poll() is None
                time.sleep(0.1)
            shown = Terminal("--every", "0.2", str(folder / "kept"))
            shown.read_until("2 of 2 ranks alive")
            shown.read_until("steps/s")
        output, _ = process.communicate(timeout=2 * PATIENCE_S)
        if shown is not None:
            shown.read_until("verdict: ")
            shown.type("q")
            assert shown.status() == 0
            shown.close()
    return sorted(re.findall(r"weights \d [0-9a-f]{64}", output))


def test_weights_are_the_same_with_and_without_a_watcher(tmp_path: Path) -> None:
    alone = _fingerprints(tmp_path / "alone", watched=False)
    beside = _fingerprints(tmp_path / "beside", watched=True)
    assert len(alone) == 2
    assert beside == alone
    names = [path.name for path in (tmp_path / "alone" / "kept").iterdir()]
    others = [path.name for path in (tmp_path / "beside" / "kept").iterdir()]
    assert sorted(others) == sorted(names)
