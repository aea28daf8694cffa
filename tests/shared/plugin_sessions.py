"""Sessions of pytest that tests of the plugin start, and what came of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from distdoctor.pytest_plugin.forking import MARK_VARIABLE

DEADLINE_S = 240.0  # for a whole session on a busy machine


@dataclass(frozen=True, slots=True)
class ReportedTest:
    """What junit's report says of a test.

    Attributes:
        outcome: "passed", "failed", "error" or "skipped".
        message: The short line.
        text: All of it.
        seconds: How long it took.
        properties: Values of the property "distdoctor".
    """

    outcome: str
    message: str
    text: str
    seconds: float
    properties: list[str]


@dataclass(frozen=True, slots=True)
class Session:
    """A session that ended by itself.

    Attributes:
        tests: What was told, by the test's name.
        output: What was printed.
        status: Exit code.
        left: Processes that carry the mark of its ranks and still live.
    """

    tests: dict[str, ReportedTest]
    output: str
    status: int
    left: list[int]


def environment(folder: Path) -> dict[str, str]:
    """Of a session whose files all lie in a folder."""
    (folder / "tmp").mkdir(exist_ok=True)
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        "TMPDIR": str(folder / "tmp"),
        "COLUMNS": "200",
    }


def command(*arguments: str) -> list[str]:
    """A pytest of its own."""
    plain = ("-p", "no:cacheprovider", "-p", "no:randomly")
    return [sys.executable, "-m", "pytest", *plain, *arguments]


def run(folder: Path, text: str, *arguments: str, config: str = "") -> Session:
    """Run tests in a session of their own.

    Args:
        folder: Where; it is made if it is not there.
        text: The test module, `test_it.py`.
        arguments: Of pytest.
        config: Text of `pytest.ini`.
    """
    folder.mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(f"[pytest]\n{config}")
    report = folder / "junit.xml"
    session = subprocess.Popen(
        command(f"--junitxml={report}", *arguments),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = session.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        stacks = _stacks_of(session.pid)
        session.terminate()  # on which it ends its ranks
        output, _ = session.communicate(timeout=DEADLINE_S)
        raise AssertionError(
            f"no end in {DEADLINE_S:.0f} s:\n{output}\n{stacks}"
        ) from None
    tests = dict(_tests(report)) if report.exists() else {}
    return Session(tests, output, session.returncode, left_of(folder))


def _stacks_of(pid: int) -> str:
    """What a session that does not end is doing, and all that it started."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    dumps = []
    for process in processes:
        program = str(Path(sys.executable).with_name("py-spy"))
        command = [program, "dump", "--nonblocking", "--pid", str(process.pid)]
        with suppress(subprocess.TimeoutExpired, psutil.Error):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=20, check=False
            )
            dumps.append(f"{process.status()}\n{done.stdout}{done.stderr}")
    return "\n".join(dumps)


def left_of(folder: Path) -> list[int]:
    """Processes of the sessions in a folder that live on."""
    return [process.pid for process in psutil.process_iter() if _is_of(process, folder)]


def hear_interrupts() -> None:
    """In a new process: heed SIGINT, which jobs in the background of a shell ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def files_of(folder: Path) -> list[Path]:
    """What the ranks of the sessions in a folder have left, but for pytest's own.

    The locks of slots stay: other sessions of the user's may hold some.
    """
    locks = f"distdoctor-{os.getuid()}"
    found = (folder / "tmp").glob("distdoctor-*")
    return [path for path in found if path.name != locks]


def wait_for(folder: Path, name: str) -> None:
    """Wait until a file is there.

    Raises:
        TimeoutError: It does not come.
    """
    end = time.monotonic() + DEADLINE_S
    while not (folder / name).exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{name} did not come")
        time.sleep(0.02)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        mark = process.environ().get(MARK_VARIABLE, "")
        return mark.startswith(str(folder)) and process.status() != "zombie"
    except (psutil.Error, OSError):
        return False


def _tests(report: Path) -> Iterator[tuple[str, ReportedTest]]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        outcome, message, text = "passed", "", ""
        for kind in ("failure", "error", "skipped"):
            for part in case.findall(kind):
                outcome = "failed" if kind == "failure" else kind
                message, text = part.get("message", ""), part.text or ""
        properties = [
            one.get("value", "")
            for one in case.iter("property")
            if one.get("name") == "distdoctor"
        ]
        seconds = float(case.get("time", "0"))
        yield (
            case.get("name", ""),
            ReportedTest(outcome, message, text, seconds, properties),
        )
