"""Files of NCCL's Inspector → evidence: who was waited for, and how fast data moved.

Field names are those of `ext-profiler/inspector/inspector.cc` and its README
(NVIDIA/nccl), output format v4.0: `header`, `metadata` and `coll_perf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np

from distdoctor.model.events import Observation
from distdoctor.model.observations.communicators import MemberWaits, TransferTime
from distdoctor.postmortem.global_ranks import GlobalRanks, global_ranks
from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.leavings import DAMAGES, Leaving
from distdoctor.postmortem.nccl_inspector.duration_table import (
    DurationTable,
    JointCollectives,
    TimedCommunicator,
)
from distdoctor.postmortem.readers import Reader

KIND = "record of NCCL's Inspector"

NOBODY = -1
"""What the durations of all ranks tell together is about the job."""

_OPS = ("AllReduce", "AllGather", "ReduceScatter")
"""Those that no member can end before all have come."""

_OF_THE_HOST = "collective_cpu"
"""A timing source: the time of the call on the host, which waits for nobody."""

_LONGEST_LINE = 1 << 20
_MOST_JOINT = 4096
_WHY_UNSEEN = "only NCCL's Inspector tells of it: how long collectives took"

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class _Header(msgspec.Struct):
    id: str
    rank: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    n_ranks: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]


class _Metadata(msgspec.Struct):
    dump_timestamp_us: _Count = 0
    hostname: str = ""
    pid: _Count = 0


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: _Count
    coll_exec_time_us: _Count
    coll_msg_size_bytes: _Count = 0
    coll_timing_source: str = ""


class _Record(msgspec.Struct):
    header: _Header
    coll_perf: _Performance
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a record of the Inspector.

    Args:
        name: Of the file.
        head: Its first bytes.
    """
    del name
    return (
        head.lstrip()[:1] == b"{"
        and b'"coll_perf"' in head
        and b'"coll_exec_time_us"' in head
    )


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read records into the evidence.

    Args:
        leavings: The files.
        evidence: Of the job.
    """
    table = DurationTable()
    for leaving in leavings:
        damage = ""
        read_lines = lost = 0
        try:
            for line in _lines(leaving):
                if _take(line, table):
                    read_lines += 1
                else:
                    lost += 1
        except DAMAGES as error:
            damage = str(error) or type(error).__name__
        if damage or not read_lines:
            evidence.unreadable.append((leaving.path, damage or "no record is whole"))
        if read_lines:
            remark = f"{lost:,} lines could not be read" if lost else ""
            evidence.sources.append(SourceRead(leaving.path, KIND, LOG, (), remark))
    _tell(table, evidence)


READER = Reader(KIND, recognises, read)


def _lines(leaving: Leaving) -> Iterator[bytes]:
    """Lines of a file; one that is too long to be a record comes in parts."""
    with leaving.open() as file:
        while line := file.readline(_LONGEST_LINE):
            if line.strip():
                yield line


_DECODER = msgspec.json.Decoder(_Record)


def _take(line: bytes, table: DurationTable) -> bool:
    """Put a line into the table, if it is a record."""
    try:
        record = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return False
    header, reported, meta = record.header, record.coll_perf, record.metadata
    if reported.coll in _OPS and reported.coll_timing_source != _OF_THE_HOST:
        table.add(
            header.id,
            header.n_ranks,
            (meta.hostname, meta.pid),
            (
                header.rank,
                _OPS.index(reported.coll),
                reported.coll_sn,
                reported.coll_msg_size_bytes,
                reported.coll_exec_time_us,
                meta.dump_timestamp_us,
            ),
        )
    return True


def _tell(table: DurationTable, evidence: Evidence) -> None:
    if not table.communicators:
        return
    comms = {
        name: (one.size, one.processes) for name, one in table.communicators.items()
    }
    who = global_ranks(comms, evidence.world_size)
    evidence.world_size = max(evidence.world_size, who.world_size)
    for rank in range(who.world_size):
        evidence.unseen.setdefault(rank, _WHY_UNSEEN)
    joint = 0
    for comm, one, found in table.joint():
        joint += len(found.op)
        evidence.add(NOBODY, *_waits(comm, one, found, who))
        evidence.add(NOBODY, *_transfers(comm, one, found))
    evidence.remarks.append(
        f"NCCL's Inspector timed {len(comms):,} communicators; the durations of all "
        f"members are known of {joint:,} collectives"
    )


def _waits(
    comm: str, one: TimedCommunicator, found: JointCollectives, who: GlobalRanks
) -> Iterator[Observation]:
    """For each member, how long the others waited when it came last."""
    us = found.us[:: max(1, -(-len(found.us) // _MOST_JOINT))]
    last = us.argmin(axis=1)
    ordered = np.sort(us, axis=1)
    wait_ms = (np.median(ordered[:, 1:], axis=1) - ordered[:, 0]) // 1000
    for member in range(one.size):
        mine = wait_ms[(last == member) & (wait_ms >= 1)].astype(np.int64)
        if not len(mine):
            continue
        process = one.processes[member]
        yield MemberWaits(
            comm=comm,
            size=one.size,
            member=member,
            known=who.of(comm, member, process),
            host=process[0],
            joint=len(us),
            every=found.every,
            span_ms=found.span_ms,
            waits_ms=tuple(mine.tolist()),
        )


def _transfers(
    comm: str, one: TimedCommunicator, found: JointCollectives
) -> Iterator[Observation]:
    """For each operation and size, how long it took the member that came last."""
    hosts = tuple(sorted({host for host, _ in one.processes.values()}))
    shortest = found.us.min(axis=1)
    kinds = np.stack([found.op, found.size_bytes], axis=1)
    for op, size_bytes in np.unique(kinds, axis=0)[-_MOST_JOINT:].tolist():
        mine = shortest[(found.op == op) & (found.size_bytes == size_bytes)]
        yield TransferTime(
            comm=comm,
            size=one.size,
            hosts=hosts,
            op=_OPS[op],
            size_bytes=size_bytes,
            times=len(mine),
            median_us=int(np.median(mine)),
        )
