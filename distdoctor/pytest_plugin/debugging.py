"""Runs pdb in one rank, with its input and output relayed by the pytest process."""

from __future__ import annotations

import io
import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from distdoctor.pytest_plugin.wire import Wire


class _Terminal(io.TextIOBase):
    """The terminal of the pytest process, as pdb in a rank sees it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def write(self, text: str, /) -> int:
        self._wire.send(("show", text))
        return len(text)

    def readline(self, _size: int | None = -1, /) -> str:  # type: ignore[override]
        self._wire.send(("read",))
        line: str = self._wire.wait()
        return line


def debug(wire: Wire, rank: int, shown: str, traceback: TracebackType | None) -> None:
    """In a rank: if pytest chooses it, run pdb until the user continues.

    Args:
        wire: The connection to pytest.
        rank: This rank.
        shown: What is shown first: how it failed.
        traceback: Traceback of the exception.
    """
    wire.send(("debug", rank))
    if wire.wait() == "yes":
        terminal: Any = _Terminal(wire)
        head = f">>> PDB post_mortem, rank {rank}: others wait >>>"
        terminal.write(f"{shown}\n\n{head}\n")
        debugger = pdb.Pdb(stdin=terminal, stdout=terminal, nosigint=True)
        debugger.reset()
        debugger.interaction(None, traceback)
        wire.send(("debugged",))


@contextmanager
def terminal_of(config: pytest.Config) -> Iterator[None]:
    """In pytest: suspend capturing while the user talks to pdb."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is not None:
        capture.suspend(in_=True)
    try:
        yield
    finally:
        sys.stdout.flush()
        if capture is not None:
            capture.resume()


def relay(message: Any, wire: Wire) -> None:
    """In pytest: execute a request of the pdb in a rank."""
    match message:
        case ("show", text):
            sys.stdout.write(text)
            sys.stdout.flush()
        case ("read",):
            wire.send(sys.stdin.readline())
