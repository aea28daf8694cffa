"""Whose an error is that reaches a guard: the probe's, or the job's."""

from __future__ import annotations

import ctypes
import functools
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from distdoctor.probes.harmless import harmless, lost, on_loss, tell_each
from distdoctor.probes.recorder import RECORDER


class Timeout(Exception):
    """As a job's own signal handler raises it."""


fired: list[int] = []


def raises(_number: int, _frame: FrameType | None) -> None:
    fired.append(1)
    raise Timeout


def raises_by_built_in(_number: int, _frame: FrameType | None) -> None:
    fired.append(1)
    raise ValueError


def any_arguments(*_given: object) -> None:
    fired.append(1)
    raise OSError


def puts_back_and_raises(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    fired.append(1)
    raise ValueError


class _Alarm:
    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        fired.append(1)
        raise ValueError

    def method(self, _number: int, _frame: FrameType | None) -> None:
        fired.append(1)
        raise ValueError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    fired.clear()
    former = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def rings(_given: object) -> str:
    signal.raise_signal(signal.SIGALRM)
    return ""


HANDLERS: list[Callable[..., Any]] = [
    *(raises, raises_by_built_in, any_arguments, puts_back_and_raises, _Alarm()),
    *(_Alarm().method, functools.partial(raises_by_built_in)),
]


NAMES = ["function", "built in", "arguments", "one shot", "object", "method", "partial"]


@pytest.mark.parametrize("handler", HANDLERS, ids=NAMES)
@pytest.mark.parametrize("deep", [False, True])
def test_what_a_signal_handler_raises_passes(
    handler: Callable[..., Any], deep: bool
) -> None:
    @harmless
    def probe() -> None:
        if deep:  # somewhere in a library that the probe calls
            json.dumps({"a": 1}, default=str)
            json.dumps([object()], default=rings)
        signal.raise_signal(signal.SIGALRM)

    signal.signal(signal.SIGALRM, handler)
    with pytest.raises((Timeout, ValueError, OSError)):
        probe()
    assert len(fired) == 1


def test_each_of_many_that_come_at_any_moment_passes() -> None:
    @harmless
    def probe(size: int) -> int:
        return sum(json.loads(json.dumps([*range(size)])))

    signal.signal(signal.SIGALRM, raises)
    arrived = 0
    while arrived < 200 and len(fired) < 400:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            for _ in range(2_000):
                probe(200)
        except Timeout:
            arrived += 1
    assert arrived == len(fired)


def test_what_another_thread_puts_into_one_passes() -> None:
    me = threading.get_ident()

    @harmless
    def probe() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(me), ctypes.py_object(Timeout)
        )
        for _ in range(10_000):
            pass

    # A test of distdoctor's is not distdoctor: what runs in the end must lie there.
    code = probe.__wrapped__.__code__  # type: ignore[attr-defined]
    probe.__wrapped__.__code__ = code.replace(  # type: ignore[attr-defined]
        co_filename=harmless.__code__.co_filename
    )
    with pytest.raises(Timeout):
        probe()


class Odd:
    """An object of a job's whose methods raise."""

    def __len__(self) -> int:
        raise Timeout

    def __eq__(self, other: object) -> bool:
        raise KeyError(other)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("use", [len, lambda odd: odd == 1, int])
def test_an_error_that_the_probe_itself_brought_about_is_lost(
    use: Callable[[Any], object],
) -> None:
    told: list[BaseException] = []
    on_loss(lambda _name, error: told.append(error))
    try:
        assert harmless(use)(Odd()) is None
        tell_each([use, use], Odd())
    finally:
        on_loss(RECORDER.lose)
    assert len(told) == 3


def test_what_comes_while_a_loss_is_told_passes() -> None:
    def report(_name: str, _error: BaseException) -> None:
        signal.raise_signal(signal.SIGALRM)

    signal.signal(signal.SIGALRM, raises)
    on_loss(report)
    try:
        with pytest.raises(Timeout):
            lost("probe", OSError())
    finally:
        with suppress(Timeout):
            on_loss(RECORDER.lose)
