"""Restarts: what a launcher has promised its ranks."""

import os
import subprocess
import sys

import pytest

from distdoctor.launch.elastic_restarts import restarts_left

ALLOWED, USED = "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"

NOBODY = 2**22 + 1  # above the greatest process number


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ({ALLOWED: "3", USED: "1"}, 2),
        ({ALLOWED: "0", USED: "0"}, 0),
        ({ALLOWED: "1", USED: "2"}, 0),
        ({ALLOWED: "many", USED: "0"}, 0),
        ({ALLOWED: "3"}, 0),
        ({"RAY_RAYLET_PID": "7"}, 1),
        ({}, 0),
    ],
)
def test_a_rank_is_told_how_often_it_may_be_started(
    variables: dict[str, str], left: int
) -> None:
    bare = {k: v for k, v in os.environ.items() if k not in {ALLOWED, USED}}
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env=bare | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert restarts_left([NOBODY, process.pid]) == left
        process.kill()


def test_of_ranks_that_are_gone_nothing_is_known() -> None:
    assert restarts_left([NOBODY]) == 0
    assert restarts_left([]) == 0
