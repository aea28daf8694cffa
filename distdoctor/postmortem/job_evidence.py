"""What readers learn of a job, put together while they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import Event, Failure, Place
from distdoctor.model.outside_view import ProcessView, StackBranch
from distdoctor.model.run import CALLS, DeviceCalls, Frame, Group, Quiet, Spec

DUMP, LOG, STACK, JOURNAL = "dump", "log", "stack", "run"
STATUS = "status"
"""Kinds of evidence, as a report names them."""


@dataclass(frozen=True, slots=True)
class SourceRead:
    """A file, or a process, that said something about the job.

    Attributes:
        path: The file, or what else it is.
        kind: What it is, in words, such as "flight recorder dump".
        evidence: One of the kinds of evidence.
        ranks: The ranks it is about, ascending; none: not known, or all.
        remark: What is special about it, such as the version it was written by.
    """

    path: str
    kind: str
    evidence: str
    ranks: tuple[int, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Calls as columns; the fields are those of the same name of `Run`.

    Attributes:
        source: The kind of evidence that tells of the calls.
    """

    calls: NDArray[Any] = field(default_factory=lambda: np.empty(0, CALLS))
    groups: tuple[Group, ...] = ()
    sites: Sequence[Place | None] = (None,)
    callers: Sequence[tuple[Place, ...]] = ((),)
    specs: Sequence[Spec] = (Spec(),)
    reached: Mapping[tuple[int, int], int] = field(default_factory=dict)
    on_devices: DeviceCalls = field(default_factory=DeviceCalls)
    source: str = JOURNAL


@dataclass(slots=True)
class Evidence:
    """All that is known of a job from what it left; readers add to it.

    Attributes:
        world_size: The largest number of ranks that anything tells; 0: nothing does.
        stated_size: The number of ranks, where something lists all of them; 0: nothing.
        columns: The calls, where something has recorded them.
        pauses: By rank, the longest time between two of its calls in ns, where
            `columns` has only those that matter.
        life: By rank, what else it did or met, in the order in which it happened.
        at_row: By rank, for each of `life`, the number of the rank's calls before it;
            shorter lists: the rest came after all calls.
        stacks: By rank, user frames at the end, innermost first.
        stopped: A value of `Stop`, if something proves that the job could not go on.
        closed: The job has ended, as far as is known.
        quiet: How the ranks stood when they were looked at; None: not known.
        stack_tree: The merged stacks of all ranks.
        processes: Of a job that runs: what was seen of the ranks' processes.
        unseen: By rank, why nothing is known of it.
        partial: By rank, why only part of what it did is known.
        set_aside: What says something of the job, or of another run of it, and could
            not be used, and why.
        outside: Exceptions that ended processes without a rank.
        last_words: The last line that the job printed.
        starved: That the kernel ended processes for want of memory, in words.
        cancelled: Who ended the job from outside, and why, in words.
        sources: What was read.
        left_out: Path and reason of what was found and says nothing of the job.
        unreadable: Path and reason of what could not be read, though its kind is known.
        remarks: Sentences for the report.
    """

    world_size: int = 0
    stated_size: int = 0
    columns: Columns = field(default_factory=Columns)
    pauses: dict[int, int] = field(default_factory=dict)
    life: dict[int, list[Event]] = field(default_factory=dict)
    at_row: dict[int, list[int]] = field(default_factory=dict)
    stacks: dict[int, Sequence[Frame]] = field(default_factory=dict)
    stopped: str = ""
    closed: bool = True
    quiet: Quiet | None = None
    stack_tree: tuple[StackBranch, ...] = ()
    processes: tuple[ProcessView, ...] = ()
    unseen: dict[int, str] = field(default_factory=dict)
    partial: dict[int, str] = field(default_factory=dict)
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    outside: list[Failure] = field(default_factory=list)
    last_words: str = ""
    starved: str = ""
    cancelled: str = ""
    sources: list[SourceRead] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, rank: int, *events: Event) -> None:
        """Add what a rank did or met, behind what is known of it already.

        Args:
            rank: A global rank.
            events: In the order in which they happened.
        """
        self.life.setdefault(rank, []).extend(events)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evidence that were read, each once, in the order of reading."""
        return tuple(dict.fromkeys(source.evidence for source in self.sources))

    @property
    def seen(self) -> set[int]:
        """Ranks that something is known of."""
        ranks = {*self.life, *self.stacks}
        called = self.columns.calls["rank"]  # ascending
        return ranks | {*called[np.diff(called, prepend=-1) != 0].tolist()}

    def rows_before(self, calls: Mapping[int, int]) -> dict[int, list[tuple[int, Any]]]:
        """`life` as a run has it.

        Args:
            calls: By rank, the number of its calls.

        Returns:
            By rank, events, each with the number of the rank's calls before it.
        """
        found = {}
        for rank, events in self.life.items():
            known = self.at_row.get(rank, [])
            rest = [calls.get(rank, 0)] * (len(events) - len(known))
            found[rank] = list(zip([*known, *rest], events, strict=True))
        return found
