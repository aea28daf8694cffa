"""Slots and GPUs that several pytest processes share."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distdoctor.errors import LaunchRefused, SlotsTaken
from distdoctor.pytest_plugin import slots as module
from distdoctor.pytest_plugin.slots import Gpus, Slots, default_total, visible_gpus

DEADLINE_S = 60.0

Start = Callable[..., subprocess.Popen[str]]

HEAD = """
import os, sys, time
from pathlib import Path
from distdoctor.pytest_plugin.slots import Slots
folder = Path(sys.argv[1])
def log(number):
    with open(folder / "log", "ab", buffering=0) as file:
        file.write(f"{number} {os.getpid()}\\n".encode())
"""

HOLDS = """
slots = Slots(int(sys.argv[2]), folder)
slots.acquire(int(sys.argv[3]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HEAD + program, str(tmp_path)]
        process = subprocess.Popen(
            [*words, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def holder(start: Start, total: int, n: int) -> subprocess.Popen[str]:
    process = start(HOLDS, total, n)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_processes_never_hold_more_than_there_is(tmp_path: Path, start: Start) -> None:
    program = """
import random
random.seed(int(sys.argv[2]))
slots = Slots(3, folder)
for _ in range(25):
    n = random.choice([1, 1, 2, 3, 7])
    with slots.hold(n):
        log(slots.held)
        time.sleep(random.random() / 200)
        log(-slots.held)
"""
    processes = [start(program, seed) for seed in range(4)]
    assert [process.wait(DEADLINE_S) for process in processes] == [0] * 4
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 4 * 25 * 2
    taken, most = 0, 0
    for line in lines:
        taken += int(line.split()[0])
        assert 0 <= taken <= 3
        most = max(most, taken)
    assert (taken, most) == (0, 3)


def test_who_wants_all_is_not_passed_by(tmp_path: Path, start: Start) -> None:
    small = """
slots = Slots(2, folder)
while not (folder / "stop").exists():
    with slots.hold(1):
        log(1)
        time.sleep(0.002)
"""
    processes = [start(small) for _ in range(3)]
    log = tmp_path / "log"
    while not (log.exists() and len({*log.read_text().split()[1::2]}) == 3):
        time.sleep(0.01)
    slots = Slots(2, tmp_path)
    for _ in range(5):
        with slots.hold(2, patience_s=DEADLINE_S):
            before = log.stat().st_size
            time.sleep(0.05)
            assert log.stat().st_size == before
    (tmp_path / "stop").touch()
    assert [process.wait(DEADLINE_S) for process in processes] == [0] * 3


def test_slots_of_a_killed_process_are_free_at_once(
    tmp_path: Path, start: Start
) -> None:
    process = holder(start, 2, 2)
    slots = Slots(2, tmp_path)
    with pytest.raises(SlotsTaken, match=f"held by processes {process.pid}:"):
        slots.acquire(1, patience_s=0.1)
    assert slots.held == 0
    process.kill()
    process.wait(DEADLINE_S)
    slots.acquire(2, patience_s=0.0)
    assert slots.held == 2
    slots.release()


def test_who_stands_still_is_not_waited_for_without_end(
    tmp_path: Path, start: Start
) -> None:
    process = holder(start, 2, 1)
    process.send_signal(signal.SIGSTOP)
    slots = Slots(2, tmp_path)
    begun = time.monotonic()
    with pytest.raises(SlotsTaken, match=str(process.pid)):
        slots.acquire(2, patience_s=0.3)
    assert time.monotonic() - begun < DEADLINE_S
    slots.acquire(1, patience_s=0.0)  # neither its turn nor a slot was kept
    slots.release()


def test_one_that_waits_for_its_turn_is_not_waited_for_either(
    tmp_path: Path, start: Start
) -> None:
    holder(start, 1, 1)
    waiting = start(HOLDS, 1, 1)
    turn = tmp_path / "slot-turn"
    # Behind the process stands the time, in which its digits may come as well.
    while not turn.exists() or turn.read_text().split()[:1] != [str(waiting.pid)]:
        time.sleep(0.01)
    with pytest.raises(SlotsTaken, match=str(waiting.pid)):
        Slots(1, tmp_path).acquire(1, patience_s=0.1)


def test_a_forked_child_does_not_keep_slots(tmp_path: Path, start: Start) -> None:
    process = start(
        "slots = Slots(1, folder)\nslots.acquire(1)\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(600)\n"
        "print(child, flush=True)\ntime.sleep(600)\n"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(SlotsTaken):
            Slots(1, tmp_path).acquire(1, patience_s=0.0)
        process.kill()
        process.wait(DEADLINE_S)
        Slots(1, tmp_path).acquire(1, patience_s=0.0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_nobody_refers_to_any_more_holds_nothing(tmp_path: Path) -> None:
    Slots(1, tmp_path).acquire(1)
    Slots(1, tmp_path).acquire(1, patience_s=0.0)


def test_each_run_stays_within_its_own_total(tmp_path: Path) -> None:
    few, many = Slots(2, tmp_path), Slots(4, tmp_path)
    many.acquire(2)
    with pytest.raises(SlotsTaken):
        few.acquire(1, patience_s=0.0)
    many.release()
    few.acquire(2)
    many.acquire(2, patience_s=0.0)
    assert (few.held, many.held) == (2, 2)


def test_what_is_enough_is_kept_and_what_is_not_is_given_back(tmp_path: Path) -> None:
    slots, other = Slots(3, tmp_path), Slots(3, tmp_path)
    slots.acquire(2)
    slots.acquire(1)
    assert slots.held == 2
    other.acquire(1)
    with pytest.raises(SlotsTaken):
        slots.acquire(3, patience_s=0.0)
    other.acquire(3, patience_s=0.0)
    other.release()


def test_gpus_are_leased_to_one_holder_each(tmp_path: Path) -> None:
    all_four = Gpus(["0", "1", "2", "3"], tmp_path)
    last_two = Gpus(["3", "MIG-GPU-a/1/0"], tmp_path)
    assert all_four.lease(2) == [0, 1]
    assert last_two.lease(2) == [0, 1]
    with pytest.raises(SlotsTaken, match="2 of 4 gpus"):
        Gpus(["0", "1", "2", "3"], tmp_path).lease(2, patience_s=0.0)
    last_two.release()
    assert Gpus(["2", "3"], tmp_path).lease(2, patience_s=0.0) == [0, 1]
    with pytest.raises(LaunchRefused, match="3 GPUs are asked for and 2 are here"):
        last_two.lease(3)


def test_gpus_are_named_as_the_environment_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(module, "_GPUS", tmp_path)
    assert visible_gpus({}) == ["0", "1", "2", "3"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, 1"}) == ["3", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2,-1,3"}) == ["2"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "9"}) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    monkeypatch.setattr(module, "_GPUS", tmp_path / "gone")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == []


def test_the_folder_is_one_that_only_the_user_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = module.shared_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(LaunchRefused, match="only you may write to"):
        Slots(1)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(LaunchRefused, match="only you may write to"):
        Slots(1)


def test_totals_are_at_least_what_a_test_asks_for() -> None:
    assert default_total(1) == len(os.sched_getaffinity(0))
    assert default_total(1000) == 1000
    with pytest.raises(LaunchRefused, match="0 slots"):
        Slots(0)
