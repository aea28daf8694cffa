"""The process that runs torch's own tests, for `their_tests.py` beside it."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_LONGEST = 300  # characters of an error that are compared

_CHANGING = (
    (re.compile(r"0x[0-9a-f]+"), "0x"),
    (re.compile(r"/tmp/\S+"), "/tmp/"),
    (re.compile(r"\b\d+(\.\d+)?(e-?\d+)?"), "N"),  # ports, processes, times
)
"""What differs from run to run in the words of errors."""


class Order(NamedTuple):
    """Which tests to run in the process, and how.

    Attributes:
        only: Names of the tests that are run; empty: all.
        without: Names of tests that are not.
        left_out: A pattern of others; "": none.
        each_s: After which a test is ended, and its process with it.
        joins: Whether the process is a rank itself, the only one of a job.
        forks: Whether ranks that tests start are forks of a process that has imported
            torch: to do so in each takes many times as long as what they do.
    """

    only: Sequence[str]
    without: Sequence[str]
    left_out: str
    each_s: float
    joins: bool
    forks: bool


class _Teller:
    """A plugin of pytest that writes down each test as it begins and as it ends.

    Args:
        path: Where to.
        order: Which tests to run.
    """

    def __init__(self, path: Path, order: Order) -> None:
        self._file = path.open("a", buffering=1)
        self._only, self._without = frozenset(order.only), frozenset(order.without)
        self._left_out = re.compile(order.left_out or "(?!)")
        self._each_s = order.each_s

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


def _fork_ranks(path: Path) -> None:
    """Have torch's test cases fork their ranks, of a process that ran no test.

    Args:
        path: The file of tests, which is loaded before.
    """
    from torch import multiprocessing
    from torch.testing._internal import common_distributed as theirs

    paths = str(path.parent), os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, reversed(paths)))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([theirs.__name__, path.stem])
    cases: Any = theirs.MultiProcessTestCase

    def process(target: Any, args: Any = (), kwargs: Any = None, **others: Any) -> Any:
        given = dict(os.environ), target, args, kwargs or {}
        return context.Process(target=_as_here, args=given, **others)

    cases._spawn_processes = lambda case: case._start_processes(process)
    multiprocessing.set_start_method("forkserver")  # they keep what is chosen already


def _as_here(environment: dict[str, str], target: Any, args: Any, kwargs: Any) -> Any:
    """Run a rank with the environment of its test, which makes a folder for it."""
    os.environ.update(environment)
    return target(*args, **kwargs)


def run_inside(path: Path, order_file: Path, told: Path) -> int:
    """Run a file of tests in this process.

    Args:
        path: The file.
        order_file: A file of JSON, the fields of `Order`.
        told: Where each test is written down.

    Returns:
        The exit status of pytest.
    """
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [str(path.parent), *(p for p in sys.path if p != here)]
    import pytest

    order = Order(*json.loads(order_file.read_text()))
    if order.joins:
        import torch.distributed as dist
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    if order.forks:
        _fork_ranks(path)
    arguments = [str(path), "-q", "-c", os.devnull, f"--rootdir={path.parent}"]
    arguments.append("--noconftest")
    for plugin in ("distdoctor", "cacheprovider", "xdist"):
        arguments += ["-p", f"no:{plugin}"]
    return int(
        pytest.main([*arguments, "-W", "ignore"], plugins=[_Teller(told, order)])
    )


if __name__ == "__main__":
    sys.exit(run_inside(*map(Path, sys.argv[1:])))
