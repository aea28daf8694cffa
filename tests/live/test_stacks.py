"""Stacks of living processes, told by py-spy or by the process itself."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.folder import StackSample
from distdoctor.launch.stacks import (
    StackTaker,
)

DEADLINE_S = 60.0  # for a Python without torch on a busy machine


PROGRAM = """\
import sys, time
if sys.argv[1] == "signal":
    from distdoctor.probes.recorder import RECORDER
    RECORDER.open(0, 1)
def spin(depth, epoch):
    if depth:
        return spin(depth - 1, epoch)
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
spin(int(sys.argv[2]), 3)
"""


SPINNING = range(8, 11)  # lines of the program once it is ready


@contextmanager
def a_spinning_process(
    folder: Path, way: str, depth: int
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    program = folder / "spin.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(program), way, str(depth)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, FOLDER_VARIABLE: str(folder)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, program
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def look_at(taker: StackTaker, pid: int) -> list[StackSample]:
    """What is seen within a few looks; one may come at a bad moment."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        samples = taker.take([(0, pid)], 1.23456)
        if samples or taker.remark:
            return samples
    return []


def test_py_spy_sees_what_a_process_is_doing(tmp_path: Path) -> None:
    taker = StackTaker(tmp_path)
    with a_spinning_process(tmp_path, "py-spy", 0) as (process, program):
        samples = look_at(taker, process.pid)
    if taker.remark:
        pytest.skip(taker.remark)
    (sample,) = samples
    assert (sample.rank, sample.pid, sample.seconds) == (0, process.pid, 1.235)
    assert sample.taken_by == "py-spy"
    assert sample.cpu_seconds is not None
    assert [f.function for f in sample.frames] == ["spin", "<module>"]
    inner = sample.frames[0]
    assert inner.file == str(program)
    assert inner.line in SPINNING
    assert inner.integers == {"depth": 0, "epoch": 3}


@pytest.mark.parametrize("depth", [0, 150])
def test_a_process_tells_its_stack_when_it_may_not_be_traced(
    tmp_path: Path, depth: int
) -> None:
    taker = StackTaker(tmp_path)
    taker._py_spy = None
    with a_spinning_process(tmp_path, "signal", depth) as (process, program):
        for _ in range(2):  # a second look reads what is new
            (sample,) = taker.take([(0, process.pid)], 2.0)
            assert sample.taken_by == "signal"
            inner = sample.frames[0]
            assert (inner.file, inner.function) == (str(program), "spin")
            assert inner.line in SPINNING
    assert len(sample.frames) == min(depth + 2, 100)


def test_a_process_that_is_gone_is_left_out(tmp_path: Path) -> None:
    with a_spinning_process(tmp_path, "signal", 0) as (process, _):
        pass
    assert StackTaker(tmp_path).take([(0, process.pid)], 1.0) == []
