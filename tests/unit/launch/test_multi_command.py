"""Several commands at once: their output is apart, and the first failure is told."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from distdoctor.journal.environment import OUTPUT_VARIABLE
from distdoctor.launch import multi_command
from distdoctor.launch.audience import Surface
from distdoctor.launch.output_channels import OutputChannels

PYTHON = sys.executable


def run_all(
    *commands: list[str], environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    words = [word for command in commands for word in (multi_command.BETWEEN, *command)]
    return subprocess.run(
        [PYTHON, multi_command.__file__, "rank", *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | environment,
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


def test_each_command_writes_to_channels_of_its_own() -> None:
    marks = ["[rank0]:", "[rank1]:", "[rank2]:"]
    channels = OutputChannels(Surface(), rank_marks=marks)
    done = run_all(
        [PYTHON, "-c", "print('a'); print('b')"],
        ["NAME=value", PYTHON, "-c", "import os, sys; print(os.environ['NAME'])"],
        [PYTHON, "-c", "import sys; sys.stderr.write('c')"],
        environment={OUTPUT_VARIABLE: channels.variable},
    )
    channels.stop_writing()
    written = [[os.read(each.reading, 99) for each in pair] for pair in channels.ranks]
    assert written == [[b"a\nb\n", b""], [b"value\n", b""], [b"", b"c"]]
    channels.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_channels_commands_write_where_they_are_started() -> None:
    assert run_all([PYTHON, "-c", "print('a')"]).stdout == "a\n"


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
