"""Several commands at once: their output is marked, and the first failure is told."""

import subprocess
import sys
from pathlib import Path

import pytest

from distdoctor.launch import multi_command

PYTHON = sys.executable


def run_all(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    words = [word for command in commands for word in (multi_command.BETWEEN, *command)]
    return subprocess.run(
        [PYTHON, multi_command.__file__, "rank", *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("a b ::: c", [["a", "b"], ["c"]]),
        ("a", [["a"]]),
        ("::: a ::: ::: b :::", [["a"], ["b"]]),
        ("", []),
    ],
)
def test_commands_stand_between_the_marks(
    words: str, commands: list[list[str]]
) -> None:
    assert multi_command.split(words.split()) == commands


def test_variables_stand_before_a_program() -> None:
    assert multi_command.settings(["A=1", "B=x=y", "run", "C=2"]) == (
        {"A": "1", "B": "x=y"},
        ["run", "C=2"],
    )
    assert multi_command.settings(["--lr=1"]) == ({}, ["--lr=1"])
    assert multi_command.settings(["A=1"]) == ({"A": "1"}, [])


def test_each_line_is_marked_with_its_command() -> None:
    done = run_all(
        [PYTHON, "-c", "print('a'); print('b')"],
        ["NAME=value", PYTHON, "-c", "import os, sys; print(os.environ['NAME'])"],
        [PYTHON, "-c", "import sys; sys.stderr.write('c')"],
    )
    assert sorted(done.stdout.split()) == ["[rank0]:a", "[rank0]:b", "[rank1]:value"]
    assert done.stderr == "[rank2]:c"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_first_failure_is_the_exit_status(end: str, status: int) -> None:
    fails = [PYTHON, "-c", f"import os, sys; {end}"]
    fine = [PYTHON, "-c", "pass"]
    assert run_all(fine, fails, fine).returncode == status


def test_a_failure_ends_no_other_command(tmp_path: Path) -> None:
    mark = tmp_path / "done"
    slow = f"import time, pathlib; time.sleep(1); pathlib.Path({str(mark)!r}).touch()"
    done = run_all([PYTHON, "-c", "1/0"], [PYTHON, "-c", slow])
    assert done.returncode == 1
    assert mark.exists()
