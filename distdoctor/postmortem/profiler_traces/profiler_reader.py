"""Reads traces of torch.profiler: of each rank's steps, what communication cost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.collectives import TracedLateness, TracedSteps
from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.leavings import DAMAGES, Leaving
from distdoctor.postmortem.profiler_traces.interval_sets import (
    IntervalSet,
    Times,
    outside,
)
from distdoctor.postmortem.profiler_traces.joint_calls import JointCalls, joint_calls
from distdoctor.postmortem.profiler_traces.profiled_events import (
    StreamState,
    TraceHead,
    read_head,
    stream,
)
from distdoctor.postmortem.profiler_traces.rank_timeline import (
    DEVICE,
    Timeline,
    TracedRank,
)
from distdoctor.postmortem.rank_names import rank_of
from distdoctor.postmortem.readers import Reader

KIND = "trace of torch.profiler"

_MOST_INTERVALS = 1 << 23  # of all traces together: 128 MiB
_MOST_STEPS = 1000  # that are told
_PARTS = 5  # into which a trace without steps is cut
_MOST_LOST = 0.001  # of events
_NEARLY_ALL = 0.9  # of what ran lies in the steps

_NO_DEVICE = (
    "its trace has no activity of a GPU: it was made without ProfilerActivity.CUDA, "
    "or the GPU could not be traced"
)
_NO_CALLS = "its trace has no communication in it"
_NO_RANK = "it does not say of which rank it is: there was no process group yet"
_ALONE = "it is of a job of one rank"
OF_NO_JOB = (_NO_RANK, _ALONE)
"""Why a trace that can be read is left out."""

_OTHERS = re.compile(rb'"NEGOTIATE_|"CYCLE_START"')  # Horovod's timeline


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a trace of torch.profiler.

    Args:
        name: Of the file, which does not matter.
        head: Its first bytes.
    """
    del name
    if head[:64].lstrip()[:1] != b"{" or _OTHERS.search(head):
        return False
    told = b'"distributedInfo"' in head or b'"deviceProperties"' in head
    return (b'"schemaVersion"' in head and (told or b'"traceEvents"' in head)) or (
        told and b'"traceEvents"' in head
    )


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read traces into the evidence.

    Args:
        leavings: The files.
        evidence: Of the job.
    """
    by_rank: dict[int, list[tuple[Leaving, TracedRank]]] = {}
    left = _MOST_INTERVALS
    size = 0
    for leaving in leavings:
        try:
            rank, head, timeline, remark = _read_one(leaving, left)
        except (*DAMAGES, ValueError) as error:
            why = str(error) or type(error).__name__
            evidence.unreadable.append((leaving.path, why))
            continue
        if rank < 0:
            evidence.left_out.append((leaving.path, _NO_RANK))
            continue
        traced = timeline.kept(head.base_ns)
        if head.world_size == 1:
            evidence.left_out.append((leaving.path, _ALONE))
            continue
        size = max(size, head.world_size, rank + 1)
        evidence.sources.append(SourceRead(leaving.path, KIND, LOG, (rank,), remark))
        if traced.where:
            left -= len(traced.starts) + len(traced.computing)
            by_rank.setdefault(rank, []).append((leaving, traced))
            continue
        blind = head.has_devices or "nccl" in head.backend or timeline.asks_nccl
        without = blind and not timeline.has_kernels
        evidence.unseen.setdefault(rank, _NO_DEVICE if without else _NO_CALLS)
    evidence.world_size = max(evidence.world_size, size)
    for rank in {*range(size)} - by_rank.keys():
        evidence.unseen.setdefault(rank, "no trace of it was found")
    ranks = {
        rank: _one_run(rank, traces, evidence)
        for rank, traces in sorted(by_rank.items())
    }
    joint = joint_calls(ranks)
    for rank, traced in ranks.items():
        evidence.add(rank, *_observed(rank, traced, joint))


READER = Reader(KIND, recognises, read)


def _read_one(leaving: Leaving, most: int) -> tuple[int, TraceHead, Timeline, str]:
    """The rank of a trace (-1: not known), its head, its events, and a remark.

    Raises:
        ValueError: It cannot be used.
        OSError: It cannot be read.
    """
    with leaving.open() as file:
        head, before = read_head(file)
        told = rank_of(leaving.path)
        if head.rank < 0 and told is not None and told < MOST_RANKS:
            head.rank = told
        timeline, state = Timeline(max(most, 0), head.groups), StreamState()
        timeline.take(stream(file, before, state))
    head.base_ns = head.base_ns or state.base_ns
    if not state.is_closed:
        raise ValueError("it breaks off: what ran later is not in it")
    if state.lost > _MOST_LOST * state.events:
        raise ValueError(
            f"{state.lost:,} of its {state.lost + state.events:,} events are damaged"
        )
    remark = f"{state.lost:,} events could not be read" if state.lost else ""
    return head.rank, head, timeline, remark


def _one_run(
    rank: int, traces: Sequence[tuple[Leaving, TracedRank]], evidence: Evidence
) -> TracedRank:
    """All traces of a rank as one; where steps are told twice, the latest counts."""
    latest, *earlier = sorted(traces, key=lambda one: one[1].begin, reverse=True)
    whole = latest[1]
    for leaving, traced in earlier:
        if traced.steps and whole.steps and not traced.steps.keys() & whole.steps:
            whole = whole.joined(traced)
        else:
            why = f"a later trace of rank {rank} tells of the same steps"
            evidence.left_out.append((leaving.path, why))
    return whole


def _observed(
    rank: int, traced: TracedRank, joint: JointCalls
) -> Iterator[TracedSteps | TracedLateness]:
    calls = IntervalSet(traced.starts, traced.ends)
    begin, end, annotated = _windows(traced, calls.united(traced.computing))
    waits, why = np.maximum(joint.waits[rank], 0), joint.why_unknown(rank, traced)
    waiting = IntervalSet(traced.starts, traced.starts + waits)
    exposed = outside(calls, traced.computing, begin, end)
    idle = outside(waiting, traced.computing, begin, end)
    yield TracedSteps(
        rank=rank,
        kernels=traced.where == DEVICE,
        annotated=annotated,
        calls=len(traced.starts),
        step_us=_us(end - begin),
        calls_us=_us(calls.within(begin, end)),
        exposed_us=_us(exposed),
        waiting_us=() if why else _us(idle),
        why=why,
    )
    late = joint.late.get(rank)
    if late is not None:
        yield TracedLateness(
            rank=rank,
            times=late.times,
            joint=joint.times,
            waited_us=late.waited_ns // 1000,
            late_us=late.window_ns // 1000,
            computing_us=late.computing_ns // 1000,
        )


def _windows(traced: TracedRank, busy: IntervalSet) -> tuple[Times, Times, bool]:
    """Beginnings and ends of the steps, and whether these are those annotated.

    Equal parts of all take their place where there are none; and, as many as there are
    steps, where the host runs so far ahead of its device that they are over when most
    of the work begins.
    """
    steps = np.array([*traced.steps.values()], np.int64).reshape(-1, 2)
    first, last = busy.starts[:1], busy.ends[-1:]
    inside = busy.within(steps[:, 0], steps[:, 1]).sum()
    if len(steps) and inside >= _NEARLY_ALL * busy.within(first, last).sum():
        told = steps[:: -(-len(steps) // _MOST_STEPS)]
        return told[:, 0], told[:, 1], True
    count = min(len(steps), _MOST_STEPS) or _PARTS
    parts = np.linspace(int(first[0]), int(last[0]), count + 1).astype(np.int64)
    return parts[:-1], parts[1:], False


def _us(ns: Times) -> tuple[int, ...]:
    return tuple((ns // 1000).tolist())
