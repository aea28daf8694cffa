"""A rank: a pytest of its own that runs the one test it is told, and then the next.

It is forked from the zygote. Nothing of it is known to the user's code but that pytest
runs it: fixtures of all scopes, parameters, assertion rewriting and capture work as
they always do.
"""

from __future__ import annotations

import functools
import os
import pickle
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from distdoctor.journal import FOLDER_VARIABLE
from distdoctor.probes import NEEDLE, sites
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.pytest_plugin.fixtures import SEAT, Seat
from distdoctor.pytest_plugin.orders import Order, Setup
from distdoctor.pytest_plugin.wire import Wire

_OURS = (str(NEEDLE.parent), str(Path(__file__).parent))

_BY_EXAMPLES = pytest.StashKey[bool]()

_LOOPBACK = "127.0.0.1"
_STORE_S = 60.0

_NOT_HERE = ("lfplugin", "nfplugin", "stepwiseplugin")
"""Plugins that write down how a session went: there is only one, and not here."""


class ItemMissing(Exception):
    """A rank cannot find the test that pytest has found."""


def serve(end: socket.socket) -> int:
    """Play ranks until pytest has closed its end.

    Returns:
        Exit status of this process.
    """
    wire = Wire(end)
    try:
        _Rank(wire, wire.wait()).serve()
    except EOFError:
        return 0
    except (Exception, SystemExit, pytest.exit.Exception):  # noqa: BLE001 - told
        with suppress(OSError):
            wire.send(("broken", traceback.format_exc()))
        return 70
    return 0


class _Rank:
    def __init__(self, wire: Wire, setup: Setup) -> None:
        self._wire = wire
        if setup.log:
            _print_to(setup.log)
        _leave_children_alone()
        self._store, port = _open_store(setup.port)
        self._wire.send(("store", port))
        self._seat = Seat(self._ask)
        self._session = _session(setup, self._seat)
        self._ear = _Ear(wire, self._session.config, self._seat, setup.debug)
        plugins = self._session.config.pluginmanager
        plugins.register(self._ear, "distdoctor-rank")
        plugins.register(_Examples(wire, self._ear), "distdoctor-examples")
        self._items: dict[str, dict[str, pytest.Item]] = {}
        self._wire.send(("ready", _captured(self._session.config)))

    def serve(self) -> None:
        while True:
            match self._wire.wait():
                case ("run", Order() as order):
                    self._obey(order)
                case ("leave",):
                    _leave()
                case ("finish",):
                    self._finish()
                    return

    def _ask(self, question: str) -> Any:
        self._wire.send(("ask", self._seat.rank, question))
        return self._wire.wait()

    def _finish(self) -> None:
        config = self._session.config
        with suppress(Exception):
            self._session._setupstate.teardown_exact(None)
        with suppress(Exception):
            config._ensure_unconfigure()

    # --- one test ---

    def _obey(self, order: Order) -> None:
        failed = False
        for rank in order.ranks:
            self._sit(order, rank)
            try:
                self._play(order, rank)
            except pytest.exit.Exception as error:
                self._wire.send(("exit", rank, str(error)))
                failed = True
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - told
                RECORDER.failure(error, error.__traceback__, fatal=True)
                self._wire.send(("lost", rank, _told(error)))
                failed = True
            failed = failed or self._ear.failed
            if len(order.ranks) > 1:
                _leave()
            elif not failed:
                harmless(RECORDER.note)("leave")
            # A rank that failed keeps its group: its end would be news to the others.
            harmless(RECORDER.close)()
        self._wire.send(("over", failed))

    def _sit(self, order: Order, rank: int) -> None:
        seat, wanted = self._seat, order.wanted
        seat.rank, seat.world_size = rank, wanted.ranks
        seat.device, seat.scratch = wanted.device, order.scratch
        seat.gpu = wanted.gpus[rank] if wanted.gpus else 0
        self._ear.failed = False
        for name in ("RANK", "LOCAL_RANK"):
            os.environ[name] = str(rank)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ[name] = str(wanted.ranks)
        if order.folder is not None:
            harmless(RECORDER.turn)(order.folder, rank, wanted.ranks)
        else:
            RECORDER.close()

    def _play(self, order: Order, rank: int) -> None:
        item = self._find(order.path, order.nodeid)
        following = None
        item.stash[_BY_EXAMPLES] = order.examples
        if order.following is not None:
            with suppress(Exception):  # told when it is its turn
                following = self._find(*order.following)
        self._join(order, rank)
        session = self._session
        session.shouldstop = session.shouldfail = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _find(self, path: str, nodeid: str) -> pytest.Item:
        """The test, from its file, which is collected the first time it is needed.

        Raises:
            ItemMissing: It is not there.
        """
        if path not in self._items:
            self._ear.uncollected.clear()
            found = self._session.perform_collect([path])
            self._items[path] = {item.nodeid: item for item in found}
        items = self._items[path]
        if nodeid not in items:
            why = "\n".join(self._ear.uncollected) or f"it has {sorted(items)}"
            del self._items[path]
            raise ItemMissing(f"{nodeid} was not found by a rank in {path}:\n{why}")
        return items[nodeid]

    def _join(self, order: Order, rank: int) -> None:
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        wanted = order.wanted
        store: Any = PrefixStore(f"{order.number}", self._store)
        if wanted.lane == "fake":
            from torch.testing._internal.distributed.fake_pg import FakeStore

            backend, store = "fake", FakeStore()
        else:
            backend = wanted.backend
        if wanted.device == "cuda":
            torch.cuda.set_device(wanted.gpus[rank])
        hook = sys.excepthook
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=wanted.ranks,
            # Ours ends it before: then it is told why.
            timeout=timedelta(seconds=2 * wanted.timeout_s + 60),
        )
        sys.excepthook = hook  # torch wraps it once more at every call


class _Ear:
    """Hears what pytest says in this rank, and tells it to the pytest that asked.

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
            self._secondary = sites.is_peers_fault(error, error.__traceback__)
            harmless(RECORDER.failure)(error, error.__traceback__, True)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed
        data = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        facts = {"secondary": self._secondary, "at_ns": time.monotonic_ns()}
        self._secondary = False
        try:
            self._wire.send(("report", self._seat.rank, data, facts))
        except (OSError, EOFError):
            raise
        except Exception:  # noqa: BLE001 - properties may be anything
            data["user_properties"] = []
            self._wire.send(("report", self._seat.rank, data, facts))

    @pytest.hookimpl
    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        if self._debug and report.when != "collect":
            from distdoctor.pytest_plugin.debugging import debug

            shown = str(report.longrepr)
            debug(self._wire, self._seat.rank, shown, call.excinfo.tb)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected.append(str(report.longrepr))

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        with suppress(Exception):  # it cannot be pickled
            self._wire.send(("warning", (warning_message, when, nodeid, location)))


class _Examples:
    """Runs the body of a test for each example that hypothesis draws in pytest."""

    def __init__(self, wire: Wire, ear: _Ear) -> None:
        self._wire, self._ear = wire, ear

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if not pyfuncitem.stash.get(_BY_EXAMPLES, False):
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


def _session(setup: Setup, seat: Seat) -> pytest.Session:
    os.chdir(setup.directory)
    sys.path[:] = setup.sys_path
    config = pytest.Config.fromdictargs(setup.options, setup.arguments)
    config.stash[SEAT] = seat
    config._do_configure()
    for name in _NOT_HERE:
        plugin = config.pluginmanager.get_plugin(name)
        if plugin is not None:
            config.pluginmanager.unregister(plugin)
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return session


def _open_store(port: int) -> tuple[Any, int]:
    """The store through which the ranks of the pool meet, and its port.

    It is opened once; each test has a prefix of its own in it.
    """
    from torch._C._distributed_c10d import TCPStore

    more: dict[str, Any] = {}
    if not port:
        listener = socket.create_server((_LOOPBACK, 0))
        port = listener.getsockname()[1]
        more = {"is_master": True, "master_listen_fd": listener.detach()}
    timeout = timedelta(seconds=_STORE_S)
    store = TCPStore(_LOOPBACK, port, timeout=timeout, wait_for_workers=False, **more)
    return store, port


def _leave() -> None:
    """Leave the group, and let go of it aside: its threads take 20 ms to end.

    Source of the figure: measured, torch 2.13 with gloo, whose loop looks every 10 ms.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        held = list(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()
        threading.Thread(target=held.clear, name="distdoctor-leave").start()


def _print_to(log: str) -> None:
    """What is printed outside of tests, and by the dying, goes into a file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _leave_children_alone() -> None:
    """What a test starts is its own business: no probes there, and none of our folders.

    A job that a test starts would be taken for another life of its ranks.
    """
    os.environ.pop(FOLDER_VARIABLE, None)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in path if entry != str(NEEDLE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    if not any(rest):
        del os.environ["PYTHONPATH"]


def _captured(config: pytest.Config) -> dict[str, int]:
    """Descriptors of the files that hold what a test printed, while it runs.

    pytest itself could read them through these, should this process die or hang.
    """
    capture = config.pluginmanager.get_plugin("capturemanager")
    found = {}
    for name, attribute in (("stdout", "out"), ("stderr", "err")):
        stream = getattr(getattr(capture, "_global_capturing", None), attribute, None)
        with suppress(Exception):
            found[name] = stream.tmpfile.fileno()  # type: ignore[union-attr]
    return found


def _told(error: BaseException) -> str:
    if isinstance(error, ItemMissing):
        return str(error)
    return "".join(traceback.format_exception(error))
