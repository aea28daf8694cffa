"""Starts the probes in a process: now what needs no torch, and the rest when it comes.

Nothing here may be slow: every Python process of the job passes through, also the
launcher and the workers of data loaders. Heavy parts wait for `init_process_group`.
"""

from __future__ import annotations

import atexit
import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType
from typing import Any

from distdoctor.journal.environment import OWNER_VARIABLE
from distdoctor.probes.call_sites import call_site, is_users
from distdoctor.probes.comparison.file_backup import keep_files
from distdoctor.probes.environment import settings
from distdoctor.probes.failures import tracebacks
from distdoctor.probes.harmless import harmless
from distdoctor.probes.import_hooks import AroundImports, Load
from distdoctor.probes.recorder import RECORDER, interpreter_ends
from distdoctor.probes.rendezvous.address_variables import watch_settings
from distdoctor.probes.rng import seeds


def start() -> None:
    """Put all probes in place; called once, before the program's first line."""
    _watch_children()
    _watch_exits()
    _watch_exceptions()
    keep_files()
    harmless(watch_settings)()
    harmless(seeds.watch)()
    harmless(settings.watch_arguments)()
    atexit.register(interpreter_ends)
    if "traceback" in sys.modules:
        harmless(tracebacks.watch_printing)(sys.modules["traceback"])
    AroundImports({name: _after(install) for name, install in _INSTALLERS.items()})
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


@harmless
def _child_ended(pid: int, status: int) -> None:
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        RECORDER.exit_of(pid, os.waitstatus_to_exitcode(status))


# --- exits -----------------------------------------------------------------------


def _watch_exits() -> None:
    """Note the line that ends the process; no traceback tells it."""
    leave, ask = os._exit, sys.exit

    def _exit(status: int) -> Any:
        # Whoever forks leaves by it, too, with the lines of its parent above.
        if is_users(sys._getframe(1).f_code.co_filename):
            _quits("os._exit", status)
        harmless(interpreter_ends)()
        leave(status)

    def exit_(status: Any = None, /) -> Any:
        _quits("sys.exit", status)
        ask(status)

    os._exit = _exit
    sys.exit = exit_
    quitter = type(getattr(builtins, "exit", None))  # what `site` puts there
    if quitter.__name__ == "Quitter":
        call: Callable[..., Any] = vars(quitter)["__call__"]

        def quit_(self: Any, code: Any = None) -> Any:
            _quits(str(self.name), code)
            return call(self, code)

        setattr(quitter, "__call__", quit_)  # noqa: B010 - mypy takes it for a method


@harmless
def _quits(how: str, status: Any) -> None:
    if RECORDER.writer is None or _is_asked_to_end():
        return
    if site := call_site(3):
        shown = status or 0 if isinstance(status, int | None) else 1
        RECORDER.note("quit", site, how=how, status=shown & 0xFF)


def _is_asked_to_end() -> bool:
    """Whether a handler of a signal runs by which others end a process."""
    codes = set()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        handler = signal.getsignal(number)
        codes.add(getattr(handler, "__code__", None))  # that of a method, too
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


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
    from distdoctor.probes import gpu_emulation

    gpu_emulation.install()  # first: the other probes go around what it puts in place
    from distdoctor.probes import lifecycle

    lifecycle.install()


def _fsdp(module: ModuleType) -> None:
    from distdoctor.probes import gpu_emulation, lifecycle

    gpu_emulation.watch_fsdp(module)
    lifecycle.watch_fsdp(module)


def _safetensors(module: ModuleType) -> None:
    from distdoctor.probes.checkpoints import checkpoint_io

    checkpoint_io.watch_safetensors(module)


def _dynamo(rules: ModuleType) -> None:
    """Keep torch.compile out of the probes: they would break its graphs, and be slow.

    It compiles whatever Python runs in between, but for libraries it was told of.
    """
    for package in ("distdoctor.probes", "distdoctor.journal"):
        rules.add(package)


_INSTALLERS = {
    "traceback": tracebacks.watch_printing,
    "multiprocessing.process": _multiprocessing,
    "torch": _torch,
    "torch.distributed.fsdp": _fsdp,
    "torch._dynamo.trace_rules": _dynamo,
    "safetensors.torch": _safetensors,
}


def _after(
    installer: Callable[[ModuleType], Any],
) -> Callable[[Load, ModuleType], None]:
    """Let an installer run right after the module it is for was loaded."""

    def around(load: Load, module: ModuleType) -> None:
        load(module)
        harmless(installer)(module)

    return around
