"""On NCCL a thread waits where it asks its GPU for something, for what was queued."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import pytest
import torch

from distdoctor.journal.format import RecordKind
from distdoctor.probes.collectives import gpu_waits
from distdoctor.probes.collectives.board import NoBoard
from distdoctor.probes.collectives.gpu_waits import GpuWaits
from distdoctor.probes.collectives.pending_calls import PendingCall, UsedGroup
from distdoctor.probes.recorder import RECORDER, Recorder

WORLD = UsedGroup(number=7, board=NoBoard(), polled=False)


class Written:
    """What would be in the journal: kinds and calls."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.lost = 0

    def mark(self, kind: int, _thread: int, call: int, *_more: Any) -> None:
        """As the writer of a journal does."""
        self.records.append((kind, call))

    def lose(self, *, fault: bool) -> None:
        """As the writer of a journal does."""
        self.lost += fault


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    written = Written()
    monkeypatch.setattr(RECORDER, "writer", written)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    on_stream(monkeypatch, "main")
    return written


def on_stream(monkeypatch: pytest.MonkeyPatch, name: Hashable) -> None:
    monkeypatch.setattr(gpu_waits, "_stream", lambda: name)


def call(number: int) -> PendingCall:
    return PendingCall(number, WORLD, ordinal=number, flags=0)


def test_who_waits_for_a_stream_waits_for_its_last_call(written: Written) -> None:
    waits = GpuWaits()
    waits.watching = True
    assert waits.begin() is None
    waits.queue(call(1))
    waits.queue(call(2))
    assert waits.begin() is not None
    assert written.records == [(RecordKind.WAIT, 2)]


def test_another_stream_need_not_wait_for_it(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = GpuWaits()
    waits.watching = True
    waits.queue(call(1))
    on_stream(monkeypatch, "copies")
    assert waits.begin() is None
    assert waits.begin(all_streams=True) is not None
    assert written.records == [(RecordKind.WAIT, 1)]


def test_what_waits_for_a_call_that_was_just_made_is_not_known(
    written: Written,
) -> None:
    waits = GpuWaits()
    waits.watching = True
    waits.queue(call(1))
    waits.forget()
    assert waits.begin() is None
    assert not written.records


def test_what_is_captured_is_not_queued(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    waits = GpuWaits()
    waits.watching = True
    waits.queue(call(1))
    assert waits.begin() is None
    assert not written.records


def test_a_gpu_that_failed_is_no_fault_of_a_probe(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen = Recorder()
    monkeypatch.setattr(pen, "writer", written)
    monkeypatch.setattr(pen, "append", lambda *_: None)
    monkeypatch.setattr(written, "rank", 0, raising=False)
    pen.lose("probe", RuntimeError("CUDA error: device-side assert triggered"))
    assert not written.lost
    pen.lose("probe", RuntimeError("CUDA error: invalid argument"))
    assert written.lost


def test_a_thread_of_autograds_is_the_one_whose_pass_it_makes() -> None:
    pen, numbers = Recorder(), []
    mine = pen.thread()

    def like_autograd() -> None:
        del threading._active[threading.get_ident()]  # type: ignore[attr-defined]
        numbers.append(pen.thread())
        threading._active[threading.get_ident()] = other  # type: ignore[attr-defined]

    def of_python() -> None:
        numbers.append(pen.thread())

    pen.passes.append(mine)
    for made in (like_autograd, of_python):
        other = threading.Thread(target=made)
        other.start()
        other.join()
    assert numbers[0] == mine
    assert numbers[1] != mine
