"""Communication calls that are not known to be complete, and their groups."""

from __future__ import annotations

import torch

from distdoctor.model.operations import ASYNCHRONOUS
from distdoctor.probes.collectives.board import Board, NoBoard
from distdoctor.probes.harmless import lose_or_raise
from distdoctor.probes.recorder import RECORDER


class UsedGroup:
    """One process group, as this process uses it."""

    __slots__ = ("board", "number", "ordinal", "polled")

    def __init__(self, number: int, board: Board | NoBoard, polled: bool) -> None:
        self.number = number  # of its text in the journal
        self.ordinal = 0  # collectives so far
        self.board = board
        # To ask NCCL whether a call is complete breaks the capture of a CUDA graph.
        self.polled = polled


class PendingCall:
    """A communication call that is not known to be complete."""

    __slots__ = (
        *("asynchronous", "call", "group", "needs_all", "of_engine", "ordinal"),
        *("polled", "watched"),
    )

    def __init__(
        self,
        call: int,
        group: UsedGroup,
        ordinal: int,
        flags: int,
        of_engine: bool = False,
    ) -> None:
        self.call = call
        # C++ inside of a backward pass makes it, and waits for it: DDP's reducer.
        self.of_engine = of_engine
        # Whether it completes only when all members have made it.
        self.needs_all = False
        # What it reads, if a line of the user's own is given a handle for it.
        self.watched: tuple[torch.Tensor, ...] | None = None
        self.group = group.number
        self.ordinal = ordinal
        self.asynchronous = bool(flags & ASYNCHRONOUS)
        self.polled = group.polled


def put_state(kind: int, pending: PendingCall) -> None:
    """Record that a call is waited for, or what became of the wait.

    Args:
        kind: A `RecordKind`.
        pending: The call.
    """
    try:
        if (writer := RECORDER.writer) is not None:
            thread = RECORDER.thread()
            writer.mark(kind, thread, pending.call, pending.ordinal, pending.group)
    except Exception as error:  # noqa: BLE001 - written out: a guard costs as much
        lose_or_raise("waiting", error)
