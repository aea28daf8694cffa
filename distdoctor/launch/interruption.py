"""Handles signals that ask to stop: the job is ended first, then distdoctor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Make SIGTERM and SIGHUP end the job as Ctrl-C does; later ones change nothing.

    Yields:
        The signals received so far.

    Raises:
        KeyboardInterrupt: With the number of the first one.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, interrupt) for number in _STOPPING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminations_interrupt() -> None:
    """Make SIGTERM and SIGHUP interrupt this process as Ctrl-C does, from now on.

    Unless they are ignored, as SIGHUP is under nohup. What is in use when one comes is
    let go, as at Ctrl-C; later ones change nothing.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def nothing_interrupts() -> None:
    """Let no termination interrupt the end of this process, which is near."""
    _terminations.append(0)


_terminations: list[int] = []


def _terminate(number: int, _frame: FrameType | None) -> None:
    _terminations.append(number)
    if len(_terminations) == 1:
        raise KeyboardInterrupt(number)


@contextmanager
def postponed() -> Iterator[None]:
    """Let signals that ask to stop wait until the block is left, and interrupt then.

    For what must not be interrupted half-way: a job that has been started, and that
    nobody holds yet, would never be ended. What a signal does without a handler of
    Python's, it does at once.

    Raises:
        KeyboardInterrupt: At the end of the block, if such a signal came.
    """
    import threading  # every command loads this module

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda sent, _: waiting.append(sent))
        for number in _STOPPING
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in waiting:
            signal.raise_signal(sent)
