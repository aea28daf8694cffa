"""Waits for stacks that nodes were asked for, and for no others."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from distdoctor.journal.folder import StackSample
from distdoctor.launch.node_messages import Stacks

STACKS_S = 10.0
"""For a node to take the stacks of its ranks."""


class StackAnswers:
    """The answers of nodes to one question after another.

    Attributes:
        request: Number of the question that is open.
    """

    def __init__(self) -> None:
        self.request = 0
        self._come: queue.SimpleQueue[Stacks] = queue.SimpleQueue()

    def ask(self) -> int:
        """Begin another question, and return its number."""
        self.request += 1
        return self.request

    def put(self, answer: Stacks) -> None:
        """Take an answer, in whatever thread."""
        self._come.put(answer)

    def gathered(
        self, nodes: int, pids: Mapping[int, int]
    ) -> tuple[list[StackSample], set[str]]:
        """Stacks, and remarks on how they were taken, as soon as all nodes have told.

        Args:
            nodes: How many were asked.
            pids: By rank, the number that its process has here.
        """
        samples: list[StackSample] = []
        remarks: set[str] = set()
        end, answers = time.monotonic() + STACKS_S, 0
        while answers < nodes and (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                told = self._come.get(timeout=left)
                if told.request != self.request:
                    continue  # came too late, for another question
                answers += 1
                remarks |= {told.remark} - {""}
                samples += [
                    msgspec.structs.replace(one, pid=pids[one.rank])
                    for one in told.samples
                    if one.rank in pids
                ]
        return samples, remarks
