"""The main loop of a rank: its own pytest, which runs one test after the other.

It is forked from the zygote. Nothing of it is known to the user's code but that pytest
runs it: fixtures of all scopes, parameters, assertion rewriting and capture work as
they always do.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.model.events import Left
from distdoctor.probes import NEEDLE
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.pytest_plugin.fixtures import SEAT, Seat
from distdoctor.pytest_plugin.horovod_ranks import (
    join_by_horovod,
    leave_horovod,
    tell_place,
)
from distdoctor.pytest_plugin.rank_orders import Order, Setup
from distdoctor.pytest_plugin.rank_plugin import BY_EXAMPLES, Examples, RankPlugin
from distdoctor.pytest_plugin.wire import Wire

_LOOPBACK = "127.0.0.1"
_STORE_S = 60.0

_NOT_HERE = ("lfplugin", "nfplugin", "stepwiseplugin")
"""Plugins that write down how a session went: there is only one, and not here."""


class ItemMissing(Exception):
    """A rank cannot find the test that pytest has found."""


def serve(end: socket.socket) -> int:
    """Run tests as a rank until the pytest process closes the connection.

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
        self._ear = RankPlugin(wire, self._session.config, self._seat, setup.debug)
        plugins = self._session.config.pluginmanager
        plugins.register(self._ear, "distdoctor-rank")
        plugins.register(Examples(wire, self._ear), "distdoctor-examples")
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
        with suppress(Exception):  # fixtures that are torn down may raise anything
            self._session._setupstate.teardown_exact(None)
        with suppress(Exception):  # and so may plugins
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
                self._wire.send(("lost", rank, _error_text(error)))
                failed = True
            failed = failed or self._ear.failed
            if len(order.ranks) > 1:
                _leave()
            elif not failed:
                harmless(RECORDER.tell)(Left())
            # A rank that failed keeps its group: its end would be news to the others.
            harmless(RECORDER.close)()
        self._wire.send(("over", failed))

    def _sit(self, order: Order, rank: int) -> None:
        seat, wanted = self._seat, order.wanted
        seat.rank, seat.world_size = rank, wanted.ranks
        seat.device, seat.scratch = wanted.device, order.scratch
        seat.gpu = wanted.gpus[rank] if wanted.gpus else 0
        self._ear.failed = False
        seat.launcher = wanted.launcher
        tell_place(rank, wanted.ranks, order.rendezvous)
        if order.folder is not None:
            harmless(RECORDER.begin_run)(order.folder, rank, wanted.ranks)
        else:
            RECORDER.close()

    def _play(self, order: Order, rank: int) -> None:
        item = self._find(order.path, order.nodeid)
        following = None
        item.stash[BY_EXAMPLES] = order.examples
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
        if wanted.launcher == "horovod":
            if wanted.device == "cuda":
                torch.cuda.set_device(wanted.gpus[rank])
            join_by_horovod()
            return
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
    """Leave the job, and let go of its group aside: its threads take 20 ms to end.

    Source of the figure: measured, torch 2.13 with gloo, whose loop looks every 10 ms.
    """
    import torch.distributed as dist

    leave_horovod()
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
        with suppress(
            AttributeError, OSError, ValueError
        ):  # it does not capture by files
            found[name] = stream.tmpfile.fileno()  # type: ignore[union-attr]
    return found


def _error_text(error: BaseException) -> str:
    if isinstance(error, ItemMissing):
        return str(error)
    return "".join(traceback.format_exception(error))
