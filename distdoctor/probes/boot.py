"""Starts the probes in a process: now what needs no torch, and the rest when it comes.

Nothing here may be slow: every Python process of the job passes through, also the
launcher and the workers of data loaders. Heavy parts wait for `init_process_group`.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any

from distdoctor.journal import OWNER_VARIABLE
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER, interpreter_ends
from distdoctor.probes.settings import watch_settings


def start() -> None:
    """Put all probes in place; called once, before the program's first line."""
    _watch_children()
    _watch_exceptions()
    harmless(watch_settings)()
    atexit.register(interpreter_ends)
    sys.meta_path.insert(0, _WhenImported())
    _open_if_ranked()


@harmless
def _open_if_ranked() -> None:
    """A process that its launcher gave a rank has a journal from the start.

    Its own children inherit RANK; they are told by OWNER that the rank is taken.
    """
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isdigit() and size.isdigit() and OWNER_VARIABLE not in os.environ:
        RECORDER.open(int(rank), int(size))


# --- ends of processes ---


def _watch_children() -> None:
    """Note how children end: only their parent learns it.

    `subprocess` and `multiprocessing` both ask `os.waitpid`, and neither has been
    imported yet.
    """
    made = os.waitpid

    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        ended, status = made(pid, options)
        if ended:
            _child_ended(ended, status)
        return ended, status

    os.waitpid = waitpid
    leave = os._exit

    def _exit(status: int) -> Any:
        harmless(interpreter_ends)()
        leave(status)

    os._exit = _exit


@harmless
def _child_ended(pid: int, status: int) -> None:
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        RECORDER.exit_of(pid, os.waitstatus_to_exitcode(status))


# --- exceptions ------------------------------------------------------------------


def _watch_exceptions() -> None:
    program, threads = sys.excepthook, threading.excepthook

    def excepthook(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> Any:
        if not issubclass(kind, KeyboardInterrupt):
            _failed(error, traceback)
        return program(kind, error, traceback)

    def thread_excepthook(args: threading.ExceptHookArgs, /) -> Any:
        if args.exc_value is not None:
            seen(args.exc_value, args.exc_traceback)
        return threads(args)

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook


@harmless
def _failed(error: BaseException, traceback: TracebackType | None) -> None:
    RECORDER.failure(error, traceback, fatal=True)


@harmless
def seen(error: BaseException, traceback: TracebackType | None) -> None:
    """Note an exception on its way up, which may yet be caught."""
    RECORDER.failure(error, traceback, fatal=False)


def reporting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function and note the exception that ends it; the exception goes on."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        _failed(error, error.__traceback__)
        raise


# --- what is imported later ---


def _multiprocessing(module: ModuleType) -> None:
    """Children of multiprocessing swallow their exception and leave by `os._exit`."""
    process = module.BaseProcess
    run = process.run

    def reporting_run(self: Any) -> None:
        reporting(run, self)

    process.run = reporting_run


def _torch(_module: ModuleType) -> None:
    from distdoctor.probes import stand_ins

    stand_ins.install()  # first: the other probes go around what it puts in place
    from distdoctor.probes import life

    life.install()


def _fsdp(module: ModuleType) -> None:
    from distdoctor.probes import life, stand_ins

    stand_ins.watch_fsdp(module)
    life.watch_fsdp(module)


def _dynamo(rules: ModuleType) -> None:
    """Keep torch.compile out of the probes: they would break its graphs, and be slow.

    It compiles whatever Python runs in between, but for libraries it was told of.
    """
    for package in ("distdoctor.probes", "distdoctor.journal"):
        rules.add(package)


_INSTALLERS = {
    "multiprocessing.process": _multiprocessing,
    "torch": _torch,
    "torch.distributed.fsdp": _fsdp,
    "torch._dynamo.trace_rules": _dynamo,
}


class _WhenImported(importlib.abc.MetaPathFinder):
    """Runs an installer right after the module it is for was imported."""

    def __init__(self) -> None:
        self._waiting = dict(_INSTALLERS)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find as Python would, and attach the installer to the loader."""
        installer = self._waiting.pop(fullname, None)
        if installer is None:
            return None
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_install(module: ModuleType) -> None:
                load(module)
                harmless(installer)(module)

            spec.loader.exec_module = load_and_install  # type: ignore[method-assign]
        return spec
