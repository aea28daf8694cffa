"""Whether torch's own tests tell a process with probes from one without.

Run it with

    python benchmarks/their_tests.py --distributed
    python benchmarks/their_tests.py TESTS optim/test_lrscheduler.py test_dataloader.py

The first runs the tests of torch.distributed that the installed package has
(`torch.testing._internal.distributed.distributed_test`), on gloo. The second runs files
below TESTS, the folder `test` of a checkout of torch at about the installed version,
which the package lacks. To get one:

    git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch

and what its tests import beside torch: `pip install expecttest parameterized`.

Each test runs in a process that has joined a job of one rank, once as it is and once
with all probes in place as `distdoctor check` puts them there. Tests whose outcome or
words differ run twice more each way. Where they differ steadily, a probe is felt:
those are listed, and the exit status is 1. The rest are flakes, and are listed, too.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

_AGAIN = 2  # times that what differs is run anew, each way
_LONGEST = 300  # characters of an error that are compared
_MOST_RESTARTS = 20  # of a file whose tests kill their process

FORKED = '''
"""As test_distributed_spawn.py of torch, but by forks, which are many times quicker."""
import torch
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)


class TestDistBackendWithFork(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
'''

_CHANGING = (
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"/tmp/\S+"), "/tmp/"),
    (re.compile(r"\b\d+(\.\d+)?(e-?\d+)?"), "N"),  # ports, processes, times
)
"""What differs from run to run in the words of errors."""


class Told(NamedTuple):
    """What came of one test.

    Attributes:
        outcome: "passed", "failed", "skipped", "error", or "crashed" with its process.
        words: Of the error, without what differs from run to run.
    """

    outcome: str
    words: str


Outcomes = dict[str, Told]
"""By the name of the test."""


# --- inside the process of the tests ---


class _Teller:
    """A plugin of pytest that writes down each test as it begins and as it ends.

    Args:
        path: Where to.
        only: Names of the tests that are run; empty: all.
        without: Names of tests that are not.
        left_out: A pattern of others; "": none.
        each_s: After which a test is ended, and its process with it.
    """

    def __init__(
        self,
        path: Path,
        only: Sequence[str],
        without: Sequence[str],
        left_out: str,
        each_s: float,
    ) -> None:
        self._file = path.open("a", buffering=1)
        self._only, self._without = frozenset(only), frozenset(without)
        self._left_out = re.compile(left_out or "(?!)")
        self._each_s = each_s

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Called when the tests are known."""
        items[:] = [
            item
            for item in items
            if item.nodeid not in self._without
            and not self._left_out.search(item.nodeid)
            and (not self._only or item.nodeid in self._only)
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Called before a test."""
        self._write(nodeid, "crashed", "")
        faulthandler.dump_traceback_later(self._each_s, exit=True)

    def pytest_runtest_logfinish(self) -> None:
        """Called behind a test."""
        faulthandler.cancel_dump_traceback_later()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called after each part of a test: what was set up, the test, the end."""
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if outcome == "failed" and report.when != "call":
                outcome = "error"
            self._write(report.nodeid, outcome, _words(report))

    def _write(self, *values: str) -> None:
        self._file.write(json.dumps(values) + "\n")


def _words(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    if isinstance(report.longrepr, tuple):
        text = str(report.longrepr[-1])
    for pattern, instead in _CHANGING:
        text = pattern.sub(instead, text)
    return text[:_LONGEST]


def run_inside(path: Path, order: Path, told: Path) -> int:
    """Run a file of tests in this process.

    Args:
        path: The file.
        order: A file of JSON: which tests, and whether this process joins a job.
        told: Where each test is written down.
    """
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(path.parent), *(p for p in sys.path if p != here)]
    import pytest

    only, without, joins, left_out, each_s = json.loads(order.read_text())
    if joins:
        import torch.distributed as dist
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    arguments = [str(path), "-q", "-c", os.devnull, f"--rootdir={path.parent}"]
    for plugin in ("distdoctor", "cacheprovider", "xdist"):
        arguments += ["-p", f"no:{plugin}"]
    teller = _Teller(told, only, without, left_out, each_s)
    return int(pytest.main([*arguments, "-W", "ignore"], plugins=[teller]))


# --- outside ---


class Way(NamedTuple):
    """How to run tests.

    Attributes:
        work: Folder for what that leaves.
        joins: Whether the tests' process is a rank itself.
        limit_s: After which a file is ended.
        left_out: A pattern of names of tests that are left out; "": none.
        each_s: After which a test is ended, with its process; it counts as crashed.
        ranks: That the tests start, which start some.
    """

    work: Path
    joins: bool
    limit_s: float
    left_out: str
    each_s: float
    ranks: int


def _environment(way: Way, probed: bool, number: int) -> dict[str, str]:
    """Of a rank, as torchrun makes it, and as `distdoctor check` does around it."""
    found = {k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR_")}
    found |= {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}
    if way.joins:
        found |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    else:
        place = way.work / f"ranks.{number}"
        for name in ("", "barrier", "test_dir", "init_dir"):
            (place / name).mkdir(parents=True, exist_ok=True)
        found |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(way.ranks),
            "TEMP_DIR": str(place),
        }
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29500 + number % 500)}
    if probed:
        found |= _probing(way.work / f"record.{number}", found.get("PYTHONPATH", ""))
    return found


def _probing(folder: Path, path: str) -> dict[str, str]:
    from distdoctor.journal import environment as names
    from distdoctor.journal.format import DEFAULT_BYTES
    from distdoctor.probes import NEEDLE

    folder.mkdir(mode=0o700)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(NEEDLE), path))),
        names.FOLDER_VARIABLE: str(folder),
        names.SUPERVISOR_VARIABLE: str(os.getpid()),
        names.SIZE_VARIABLE: str(DEFAULT_BYTES),
        names.DEVICE_VARIABLE: "",
        names.RANKS_VARIABLE: "1",
    }


_numbers = iter(range(10**6))


def outcomes_of(
    path: Path, way: Way, probed: bool, names: Iterable[str] = ()
) -> Outcomes:
    """What comes of the tests of a file; one that kills its process is left behind.

    Args:
        path: The file.
        way: How to run it.
        probed: With the probes.
        names: Only these tests; empty: all.
    """
    told = way.work / f"told.{next(_numbers)}"
    found: Outcomes = {}
    end = time.monotonic() + way.limit_s
    for _ in range(_MOST_RESTARTS):
        number = next(_numbers)
        order = way.work / f"order.{number}"
        order.write_text(
            json.dumps([[*names], [*found], way.joins, way.left_out, way.each_s])
        )
        words = [sys.executable, str(Path(__file__).resolve()), "--inside"]
        words += map(str, (path, order, told))
        with (way.work / f"output.{number}").open("wb") as output:
            try:
                code = subprocess.run(
                    words,
                    env=_environment(way, probed, number),
                    cwd=path.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=max(end - time.monotonic(), 1),
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                print(f"{path.name}: ended after {way.limit_s:.0f} s", flush=True)
                return {k: v for k, v in _read(told).items() if v.outcome != "crashed"}
        before, found = found.keys(), _read(told)
        new = [found[name].outcome for name in found.keys() - before]
        if "crashed" not in new and (code in {0, 1} or not new):
            break
    return found


def _read(told: Path) -> Outcomes:
    lines = told.read_text().splitlines() if told.exists() else ()
    return {name: Told(*rest) for name, *rest in map(json.loads, lines)}


def differing(one: Outcomes, other: Outcomes) -> Iterator[str]:
    """Names of the tests that ran in both, and of which not the same came."""
    for name, told in one.items():
        if name in other and other[name] != told:
            yield name


def compare(path: Path, way: Way) -> tuple[list[str], list[str]]:
    """Run a file's tests both ways at once, and what differs again.

    Returns:
        What to print of the tests that differ steadily, and of flakes.
    """
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        bare, probed = pool.map(lambda p: outcomes_of(path, way, p), (False, True))
    suspects = list(differing(bare, probed))
    both = len(bare.keys() & probed.keys())
    took = time.monotonic() - begun
    kinds = [told.outcome for told in bare.values()]
    counts = ", ".join(f"{kinds.count(k)} {k}" for k in sorted(set(kinds)))
    print(
        f"{path.name}: {both} tests both ways in {took:.0f} s; bare: {counts}; "
        f"{len(suspects)} to run again; only one way: "
        f"{len(bare.keys() ^ probed.keys())}",
        flush=True,
    )
    steady: list[str] = []
    flakes: list[str] = []
    if suspects:
        with ThreadPoolExecutor(2) as pool:
            rounds = [False, True] * _AGAIN
            again = [*pool.map(lambda p: outcomes_of(path, way, p, suspects), rounds)]
        for name in suspects:
            ways: list[set[Told | None]] = [{bare[name]}, {probed[name]}]
            for probes, found in zip(rounds, again, strict=True):
                ways[probes].add(found.get(name))
            text = f"{name}\n    bare:   {_told(ways[0])}\n    probed: {_told(ways[1])}"
            (flakes if ways[0] & ways[1] else steady).append(text)
    return steady, flakes


def _told(ways: set[Told | None]) -> str:
    return " | ".join(sorted("lost" if w is None else ": ".join(w) for w in ways))


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="?", type=Path, help="folder `test` of torch")
    parser.add_argument("files", nargs="*", help="files in there")
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds of a file")
    parser.add_argument("--each", type=float, default=120.0, help="seconds of a test")
    parser.add_argument("--without", default="", help="a pattern of tests' names")
    parser.add_argument("--ranks", type=int, default=2, help="of --distributed")
    parser.add_argument("--keep", type=Path, help="folder that keeps all outputs")
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(run_inside(*map(Path, sys.argv[2:])))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = (given.keep or Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        paths = [((given.tests / name).resolve(), True) for name in given.files]
        if given.distributed:
            forked = work / "test_distributed_fork.py"
            forked.write_text(FORKED)
            paths.append((forked, False))
        shared = given.limit, given.without, given.each, given.ranks
        found = [compare(path, Way(work, joins, *shared)) for path, joins in paths]
    for title, part in (("a probe is felt", 0), ("flakes", 1)):
        texts = [text for one in found for text in one[part]]
        print(f"\n{title}: {len(texts)}", *texts, sep="\n", flush=True)
    sys.exit(any(steady for steady, _ in found))


if __name__ == "__main__":
    main()
