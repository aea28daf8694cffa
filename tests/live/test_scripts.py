"""The fixture `check_script`: what a test gets, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from plugin_sessions import hear_interrupts

pytest_plugins = ["pytester"]

DEADLINE_S = 300.0

MARK = "DISTDOCTOR_TEST_SCRIPTS"

HEAD = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(4)
dist.all_reduce(t)
print("READY", sys.argv[1:], flush=True)
"""

SICK = HEAD + "if rank == 0:\n    dist.all_reduce(t)\ndist.barrier()\n"
WELL = HEAD + "dist.destroy_process_group()\n"
NEVER_ENDS = HEAD + "while True:\n    dist.all_reduce(t)\n    time.sleep(0.05)\n"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        *("-p", "no:cacheprovider", "--basetemp=base"),
        *("--distdoctor-report=out/report.json", *arguments),
        timeout=DEADLINE_S,
    )


def records(pytester: pytest.Pytester) -> list[Path]:
    return [*(pytester.path / "base").rglob("*.journal")]


def test_a_script_is_run_judged_and_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "1")  # so that pytest cuts no line of its summary
    """Sick and well, through xdist, with other people's children in the process."""
    pytester.makepyfile(train=SICK, fine=WELL)
    pytester.makepyfile(
        test_them="""
        import ctypes, os, subprocess
        from distdoctor.testing import assert_well

        def test_sick(check_script):
            run = check_script("train.py", "--lr", "0.1", nproc=2)
            assert (run.verdict, run.codes) == ("sick", ["DD108"])
            assert run.findings[0].locations[0].file == "train.py"
            assert "READY ['--lr', '0.1']" in run.stdout
            assert_well(run)

        def test_well(check_script, monkeypatch, tmp_path):
            monkeypatch.setenv("RANK", "7")
            theirs = subprocess.Popen(["sh", "-c", "exit 7"])
            run = check_script(command=["python", "-m", "torch.distributed.run",
                               "--standalone", "--nproc-per-node", "2", "fine.py"])
            assert_well(run)
            assert theirs.wait() == 7
            adopts = ctypes.c_int(-1)
            ctypes.CDLL(None).prctl(37, ctypes.byref(adopts), 0, 0, 0)
            assert adopts.value == 0
            assert os.environ["RANK"] == "7"
        """
    )
    result = run(pytester, "-n1", "--junitxml=out/junit.xml", "test_them.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the run is sick, not well*",
            "*DD108 skipped collective*",
            "*train.py:10*rank 0*",
            "*kept in *",
        ]
    )
    (summary,) = [one for one in result.outlines if one.startswith("FAILED ")]
    assert "not well: DD108 skipped collective: rank 0 at " in summary
    assert summary.endswith("train.py:9")
    log = json.loads((pytester.path / "out" / "report.json").read_text())
    assert [report["verdict"] for report in log["reports"]] == ["sick", "well"]
    kept = Path(log["reports"][0]["run"]["record"])
    assert {path.parent for path in records(pytester)} == {kept}
    tree = ElementTree.parse(pytester.path / "out" / "junit.xml")
    found = [(one.get("name"), one.get("value")) for one in tree.iter("property")]
    assert found == [("distdoctor", "DD108")]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name
)
def test_whatever_ends_pytest_ends_the_script(
    pytester: pytest.Pytester, number: signal.Signals
) -> None:
    pytester.makepyfile(train=NEVER_ENDS + f"# {number}\n")
    pytester.makepyfile(
        "def test_it(check_script):\n    check_script('train.py', full=True)\n"
    )
    mark = f"{pytester.path}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp=base"],
        cwd=pytester.path,
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hear_interrupts,
    )
    try:
        end = time.monotonic() + DEADLINE_S
        while len(records(pytester)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(carriers(mark)) > 3
        process.send_signal(number)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == (2 if number == signal.SIGINT else -number), output
        end = time.monotonic() + 60
        while carriers(mark) and time.monotonic() < end:
            time.sleep(0.1)
        assert not carriers(mark)
    finally:
        process.kill()
        for left in carriers(mark):
            with suppress(psutil.Error):
                left.kill()


def carriers(mark: str) -> list[psutil.Process]:
    """Processes of a test that live."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return [p for p in found if p.status() != psutil.STATUS_ZOMBIE]
