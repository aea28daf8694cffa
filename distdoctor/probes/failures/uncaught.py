"""Records the exceptions that end a program, a thread or a child process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from distdoctor.probes.failures import tracebacks
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Wrap the hooks that Python calls with uncaught exceptions."""
    program, threads = sys.excepthook, threading.excepthook

    def excepthook(
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> Any:
        if not issubclass(kind, KeyboardInterrupt):
            _failed(error, traceback)
        _clean(error)
        return program(kind, error, error.__traceback__)

    def thread_excepthook(args: threading.ExceptHookArgs, /) -> Any:
        if args.exc_value is not None:
            seen(args.exc_value, args.exc_traceback)
            _clean(args.exc_value)
        return threads(args)

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook


_clean = harmless(tracebacks.clean)


@harmless
def _failed(error: BaseException, traceback: TracebackType | None) -> None:
    RECORDER.failure(error, traceback, fatal=True)


@harmless
def seen(error: BaseException, traceback: TracebackType | None) -> None:
    """Record an exception that propagates, and may yet be caught."""
    RECORDER.failure(error, traceback, fatal=False)


def reporting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function and record the exception that ends it, if any."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        _failed(error, error.__traceback__)
        raise


def _multiprocessing(module: ModuleType) -> None:
    """Children of multiprocessing swallow their exception and leave by `os._exit`."""
    process = module.BaseProcess
    run = process.run

    def reporting_run(self: Any) -> None:
        reporting(run, self)

    process.run = reporting_run


PROBE = Probe(install=install, imports={"multiprocessing.process": _multiprocessing})
