"""When a rank communicated and computed, as the events of its traces tell.

On a GPU these are kernels: those of NCCL (and RCCL), whose names begin with "nccl", and
all others; copies are neither. Holistic Trace Analysis (facebookresearch) draws the
line there, too. What a kernel of NCCL tells of its call comes from `record_param_comms`
(`torch/csrc/distributed/c10d/ParamCommsUtils.hpp`, pytorch). On CPUs they are the
annotations `gloo:…`, which gloo's own threads make while they run a collective, and
torch's operators.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from distdoctor.postmortem.profiler_traces.interval_sets import (
    GrowingIntervals,
    IntervalSet,
    Times,
)
from distdoctor.postmortem.profiler_traces.profiled_events import (
    ProfiledEvent,
    TracedGroup,
)

DEVICE, HOST = "device", "host"
"""Where a rank was seen to compute."""

_STEP = re.compile(r"ProfilerStep#(\d{1,12})")
_OPERATORS, _KERNELS = {"cpu_op", "operator"}, {"kernel"}  # "Operator" once
_HOSTS = {"user_annotation", *_OPERATORS}
_NO_COMPUTING = ("c10d::", "_c10d_functional", "record_param_comms", "gloo:", "nccl:")
"""Operators that issue a collective, or wait for one."""

_MOST_STEPS = 100_000
_MOST_DEVICES = 64
_MOST_KINDS = 4096
_LONGEST_NAME = 200


class TooManyIntervals(ValueError):
    """A trace has more of them than are kept."""


@dataclass(slots=True)
class TracedCalls:
    """Collectives that ran on one device, in the order of the file.

    Attributes:
        starts: Of each, in ns.
        ends: Of each, in ns.
        kinds: Of each, its position in `TracedRank.kinds`.
    """

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("q"))

    def add(self, start: int, end: int, kind: int) -> None:
        """Take one."""
        self.starts.append(start)
        self.ends.append(end)
        self.kinds.append(kind)


@dataclass(frozen=True, slots=True)
class TracedKind:
    """What collectives have in common that other ranks must have made alike.

    Attributes:
        group: Name of the process group; "": not told.
        among: Its ranks, as the trace lists them: groups apart may have one name.
        members: Of the group, as many as it has; 0: not told.
        op: As the trace names it, in small letters without underscores.
        elements: That each rank gives; -1: not told.
    """

    group: str
    among: str
    members: int
    op: str
    elements: int

    @property
    def waits_for_all(self) -> bool:
        """No member can end it before all have come."""
        return any(one in self.op for one in _FOR_ALL)


_FOR_ALL = ("allreduce", "allgather", "reducescatter")


@dataclass(frozen=True, slots=True)
class TracedRank:
    """What is kept of a trace.

    Attributes:
        where: `DEVICE` or `HOST`; "": no communication was recorded.
        steps: By number, beginning and end in ns; none: not annotated.
        starts: Of each collective in ns, ascending.
        ends: Of each.
        kind: Of each, the position in `kinds`.
        kinds: Of collectives.
        computing: When kernels or operators ran.
    """

    where: str
    steps: dict[int, tuple[int, int]]
    starts: Times
    ends: Times
    kind: Times
    kinds: tuple[TracedKind, ...]
    computing: IntervalSet

    @property
    def begin(self) -> int:
        """The first moment that is known, in ns."""
        firsts = [self.starts[:1], self.computing.starts[:1]]
        firsts.append(np.array([begin for begin, _ in self.steps.values()], np.int64))
        return int(min((one.min() for one in firsts if len(one)), default=0))

    def joined(self, other: TracedRank) -> TracedRank:
        """This and another trace of the same rank.

        Args:
            other: With other steps.
        """
        kinds = {one: at for at, one in enumerate((*self.kinds, *other.kinds))}
        every = [*kinds]
        moved = [
            np.array([every.index(one) for one in of.kinds] or [0], np.int64)[of.kind]
            for of in (self, other)
        ]
        starts = np.append(self.starts, other.starts)
        order = np.argsort(starts, kind="stable")
        return TracedRank(
            where=self.where or other.where,
            steps=dict(sorted((self.steps | other.steps).items())),
            starts=starts[order],
            ends=np.append(self.ends, other.ends)[order],
            kind=np.concatenate(moved)[order],
            kinds=tuple(every),
            computing=self.computing.united(other.computing),
        )


class Timeline:
    """Takes the events of one trace."""

    def __init__(self, most: int, groups: Sequence[TracedGroup]) -> None:
        """Make an empty one.

        Args:
            most: Intervals to be kept.
            groups: Those that the rank is in.
        """
        self._most = most
        # A name of gloo's events tells no group; where there is one, it is that.
        self._only = groups[0] if len(groups) == 1 else TracedGroup()
        self._steps: dict[int, tuple[int, int]] = {}
        self._kinds: dict[TracedKind, int] = {}
        self._operators = GrowingIntervals()
        self._gloo = TracedCalls()
        self._computing: dict[int, GrowingIntervals] = {}
        self._nccl: dict[int, TracedCalls] = {}
        self.has_kernels = False
        self.asks_nccl = False

    def take(self, events: Iterable[ProfiledEvent]) -> None:
        """Take all events of a file.

        Args:
            events: In any order.

        Raises:
            TooManyIntervals: There are more than are kept.
        """
        for number, event in enumerate(events):
            start = round(event.ts * 1000)
            self._one(event, start, start + round(event.dur * 1000))
            if not number & 0xFFF and self._kept() > self._most:
                raise TooManyIntervals(
                    f"it holds more than {self._most:,} kernels and operators; "
                    "profile fewer steps"
                )

    def _kept(self) -> int:
        computing = sum(map(len, self._computing.values())) + len(self._operators)
        calls = sum(len(one.starts) for one in self._nccl.values())
        return computing + calls + len(self._gloo.starts)

    def _one(self, event: ProfiledEvent, start: int, end: int) -> None:
        kind, name = event.cat.lower(), event.name
        if kind in _KERNELS:
            self._kernel(event, start, end)
        elif kind in _HOSTS and (match := _STEP.fullmatch(name)):
            self._step(int(match[1]), start, end)
        elif kind in _OPERATORS:
            if not self.has_kernels and not name.startswith(_NO_COMPUTING):
                self._operators.add(start, end)
        elif kind in _HOSTS:
            if name.startswith("gloo:"):
                self._gloo.add(start, end, self._kind(name[5:], {}, self._only))
            elif name.startswith("nccl:"):
                self.asks_nccl = True

    def _step(self, number: int, start: int, end: int) -> None:
        if len(self._steps) < _MOST_STEPS:
            self._steps[number] = start, end

    def _kernel(self, event: ProfiledEvent, start: int, end: int) -> None:
        if not self.has_kernels:
            self.has_kernels = True
            self._operators = GrowingIntervals()  # what the host did is not asked for
        device = event.pid if type(event.pid) is int else 0
        if device not in self._computing and len(self._computing) >= _MOST_DEVICES:
            return
        computing = self._computing.setdefault(device, GrowingIntervals())
        if not event.name.lower().startswith("nccl"):
            computing.add(start, end)
            return
        args = event.args if isinstance(event.args, dict) else {}
        calls = self._nccl.setdefault(device, TracedCalls())
        op = args.get("Collective name")
        kind = self._kind(
            op if isinstance(op, str) else event.name, args, TracedGroup()
        )
        calls.add(start, end, kind)

    def _kind(self, op: str, args: dict[str, object], group: TracedGroup) -> int:
        name, size = args.get("Process Group Name"), args.get("Group size")
        elements = args.get("In msg nelems")
        if isinstance(name, str) and type(size) is int:
            among = str(args.get("Process Group Ranks", ""))[:_LONGEST_NAME]
            group = TracedGroup(name[:_LONGEST_NAME], among, size)
        kind = TracedKind(
            *group,
            op[:_LONGEST_NAME].lower().replace("_", ""),
            elements if type(elements) is int else -1,
        )
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = TracedKind(*TracedGroup(), "", -1)  # which is matched with none
        return self._kinds.setdefault(kind, len(self._kinds))

    def kept(self, base_ns: int) -> TracedRank:
        """What is kept of it: of several devices, that which communicates most.

        Args:
            base_ns: From where times of the events count.
        """
        where, calls, computing = "", TracedCalls(), IntervalSet(_none(), _none())
        if self._nccl:
            where = DEVICE
            device = max(self._nccl, key=lambda one: _total(self._nccl[one]))
            calls, computing = self._nccl[device], self._computing[device].union()
        elif self._gloo.starts and not self.has_kernels:
            where, calls = HOST, self._gloo
            computing = self._operators.union()
        starts = np.array(calls.starts, np.int64) + base_ns
        order = np.argsort(starts, kind="stable")
        return TracedRank(
            where=where,
            steps={
                number: (begin + base_ns, end + base_ns)
                for number, (begin, end) in sorted(self._steps.items())
            },
            starts=starts[order],
            ends=np.array(calls.ends, np.int64)[order] + base_ns,
            kind=np.array(calls.kinds, np.int64)[order],
            kinds=tuple(self._kinds),
            computing=IntervalSet(computing.starts + base_ns, computing.ends + base_ns),
        )


def _none() -> Times:
    return np.empty(0, np.int64)


def _total(calls: TracedCalls) -> int:
    return sum(calls.ends) - sum(calls.starts)
