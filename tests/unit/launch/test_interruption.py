"""Signals that ask to stop, at any moment of a job's beginning."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from distdoctor.launch import supervisor
from distdoctor.launch.guarded_process import GuardedProcess
from distdoctor.launch.interruption import postponed, signals_interrupt
from distdoctor.launch.process_tree import ProcessTree
from distdoctor.launch.subprocess_runner import _Passing
from distdoctor.launch.supervisor import Plan, supervise
from distdoctor.model.stop_reasons import Stop

STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]
SOON_S = 10.0


def with_mark(name: str, value: str) -> list[psutil.Process]:
    """The processes that have a variable in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except (psutil.Error, OSError):
            pass
    return found


def gone(name: str, value: str) -> bool:
    """Whether all of them end soon."""
    end = time.monotonic() + SOON_S
    while with_mark(name, value):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", STOPPING)
def test_what_must_not_be_interrupted_is_done_first(number: int) -> None:
    done = []

    def act() -> None:
        with postponed():
            signal.raise_signal(number)
            done.append(1)

    with signals_interrupt() as received:
        with pytest.raises(KeyboardInterrupt):
            act()
        assert (done, received) == ([1], [number])


def test_nothing_is_changed_where_nothing_comes() -> None:
    before = [signal.getsignal(number) for number in STOPPING]  # nohup ignores some
    with postponed():
        pass
    assert [signal.getsignal(number) for number in STOPPING] == before


@pytest.mark.parametrize("number", STOPPING)
def test_a_job_is_ended_that_was_just_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Interrupted(ProcessTree):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            signal.raise_signal(number)

    monkeypatch.setattr(supervisor, "ProcessTree", Interrupted)
    plan = Plan(
        command=ENDLESS,
        script="endless",
        directory=tmp_path,
        folder=tmp_path,
        ranks=1,
        budget_s=60.0,
    )
    with signals_interrupt():
        manifest = supervise(plan, _Passing())
    assert manifest.stopped == Stop.INTERRUPTED
    assert gone("DISTDOCTOR_FOLDER", str(tmp_path))


def test_nothing_stays_of_a_command_whose_start_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hear: Callable[[GuardedProcess], int] = GuardedProcess._started

    def interrupted(self: GuardedProcess) -> int:
        hear(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(GuardedProcess, "_started", interrupted)
    name, value = "DISTDOCTOR_TEST_START", f"{os.getpid()}-{time.monotonic_ns()}"
    with pytest.raises(KeyboardInterrupt):
        GuardedProcess(ENDLESS, mark=name, environment={**os.environ, name: value})
    assert gone(name, value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_which_signal_came_before_the_job(
    tmp_path: Path, number: int
) -> None:
    (tmp_path / "train.py").write_text("")
    code = (
        "import signal, sys\n"
        "sys.argv = ['distdoctor', 'check', 'train.py']\n"
        "from distdoctor.cli import check, main\n"
        f"check._run = lambda *_: signal.raise_signal({int(number)})\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert done.stderr.strip() == "distdoctor: interrupted"
    assert not list((tmp_path / "cache").glob("distdoctor/runs/*"))
