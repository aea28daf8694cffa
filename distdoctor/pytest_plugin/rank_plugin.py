"""The pytest plugins inside a rank, which report to the pytest process."""

from __future__ import annotations

import functools
import pickle
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distdoctor.probes import NEEDLE, call_sites
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.pytest_plugin.fixtures import Seat
from distdoctor.pytest_plugin.wire import NotPicklable, Wire

BY_EXAMPLES = pytest.StashKey[bool]()
"""Whether hypothesis draws examples for a test."""

_OURS = (str(NEEDLE.parent), str(Path(__file__).parent))


class RankPlugin:
    """Sends what happens in this rank's pytest to the pytest process.

    Attributes:
        failed: Whether a phase of the test failed.
        uncollected: What went wrong while files were collected.
    """

    def __init__(
        self, wire: Wire, config: pytest.Config, seat: Seat, debug: bool
    ) -> None:
        self._wire, self._config, self._seat = wire, config, seat
        self._debug = debug
        self._secondary = False
        self.failed = False
        self.uncollected: list[str] = []

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Remove our own frames, and note whether a peer's failure caused this."""
        if call.excinfo is not None:
            # The probes stand between the test and torch, and are nobody's concern.
            theirs = call.excinfo.traceback.filter(_is_not_ours)
            call.excinfo.traceback = theirs or call.excinfo.traceback
        outcome: Any = yield
        report = outcome.get_result()
        self._secondary = False
        error = None if call.excinfo is None else call.excinfo.value
        if error is None or isinstance(error, pytest.skip.Exception):
            return
        if report.failed or hasattr(report, "wasxfail"):
            self.failed = True
            self._secondary = call_sites.is_peers_fault(error, error.__traceback__)
            harmless(RECORDER.failure)(error, error.__traceback__, True)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report to the pytest process."""
        self.failed = self.failed or report.failed
        data = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        facts = {"secondary": self._secondary, "at_ns": time.monotonic_ns()}
        self._secondary = False
        try:
            self._wire.send(("report", self._seat.rank, data, facts))
        except NotPicklable:  # properties may be anything
            data["user_properties"] = []
            self._wire.send(("report", self._seat.rank, data, facts))

    @pytest.hookimpl
    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        """With `--pdb`, let the user debug a failure."""
        if self._debug and report.when != "collect":
            from distdoctor.pytest_plugin.debugging import debug

            shown = str(report.longrepr)
            debug(self._wire, self._seat.rank, shown, call.excinfo.tb)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note errors of collection."""
        if report.failed:
            self.uncollected.append(str(report.longrepr))

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        """Send a warning to the pytest process."""
        with suppress(NotPicklable, OSError):  # or pytest has gone: it hears no more
            self._wire.send(("warning", (warning_message, when, nodeid, location)))


class Examples:
    """Runs the body of a test for each example that hypothesis draws in pytest."""

    def __init__(self, wire: Wire, ear: RankPlugin) -> None:
        self._wire, self._ear = wire, ear

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the body for examples until there are no more."""
        if not pyfuncitem.stash.get(BY_EXAMPLES, False):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        fixtures = {name: pyfuncitem.funcargs[name] for name in names}
        body = pyfuncitem.obj.hypothesis.inner_test
        if pyfuncitem.instance is not None:
            body = functools.partial(body, pyfuncitem.instance)
        rejects = False
        while True:
            if RECORDER.writer is not None:
                harmless(RECORDER.writer.end)()  # until pytest says otherwise
            self._wire.send(("ready", rejects))
            match self._wire.wait():
                case ("example", data):
                    rejects = self._try(pyfuncitem, body, data, fixtures)
                case _:
                    return True

    def _try(
        self, item: pytest.Item, body: Any, data: bytes, fixtures: dict[str, Any]
    ) -> bool:
        """Run the body, and report if it fails; whether it rejects the example."""
        from hypothesis.errors import UnsatisfiedAssumption

        def run() -> None:
            body(**pickle.loads(data), **fixtures)  # noqa: S301 - pytest's own

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using `assume` outside")
            call = pytest.CallInfo.from_call(run, "call", (pytest.exit.Exception,))
        if call.excinfo is None:
            return False
        if isinstance(call.excinfo.value, UnsatisfiedAssumption):
            return True
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        self._ear.pytest_runtest_logreport(report)
        harmless(RECORDER.close)()  # for the others, this rank has come to its end
        return False


def _is_not_ours(entry: Any) -> bool:
    return not str(entry.path).startswith(_OURS)
