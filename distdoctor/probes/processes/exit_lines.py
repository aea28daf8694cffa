"""Records the line that ends its own process, which no traceback shows."""

from __future__ import annotations

import builtins
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from distdoctor.probes.call_sites import call_site, is_users
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER, interpreter_ends


def install() -> None:
    """Wrap `os._exit`, `sys.exit` and `exit`."""
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
        from distdoctor.model.events import Quit

        RECORDER.tell(Quit(how=how, status=shown & 0xFF), site)


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


PROBE = Probe(install=install)
