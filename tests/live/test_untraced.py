"""Where no process may be traced: stacks come by a signal, and as much is told."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import untraced
from programs import FIXTURES, program
from real_runs import check, named_lines

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in untraced.NUMBERS,
    reason="the filter is of Linux, and of these processors",
)

THROUGH = [sys.executable, untraced.__file__]


def test_nobody_may_trace_there() -> None:
    asks = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, None, None))"
    answers = [
        subprocess.run(
            [*through, sys.executable, "-c", asks],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for through in ([], THROUGH)
    ]
    assert answers == ["0", "-1"]


def test_the_way_to_a_call_is_told_all_the_same(tmp_path: Path) -> None:
    guise = program(FIXTURES / "guises" / "helper_below_guard.py")
    status, report, output = check(tmp_path, str(guise.path), through=THROUGH)
    assert status == 1, output
    (finding,) = report["findings"]
    assert finding["code"] == guise.code
    assert named_lines(finding)[0] in guise.lines_of(guise.code)
    assert "The way there" in finding["summary"]
