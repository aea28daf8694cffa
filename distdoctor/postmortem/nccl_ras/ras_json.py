"""RAS reports in JSON: those of NCCL 2.28.7 and later.

Field names are those of `src/ras/client_support.cc` (NVIDIA/nccl), `jsonWriteHeader`
and what follows it there.
"""

from __future__ import annotations

import re

import msgspec

from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.communicators import MemberState
from distdoctor.postmortem.nccl_ras.ras_report import (
    RasAilment,
    RasCommunicator,
    RasProcess,
    RasReport,
    differing,
)

_FIRST = re.compile(rb'\{\s*"nccl_version"')

_IN_PROGRESS = 7
"""`ncclResult_t`: it is at work; 0 is success."""

_RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}


class _Status(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = {}


class _MissingStatus(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = -1
    unresponsive: bool = False  # here, or in `status`
    considered_dead: bool = False
    status: _MissingStatus = msgspec.field(default_factory=_MissingStatus)


class _Communicator(msgspec.Struct):
    size: int
    hash: str = ""
    secondary_hash: str = ""
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Ras(msgspec.Struct):
    timeouts_count: int = 0


class _Report(msgspec.Struct):
    communicators: list[_Communicator]
    nccl_version: str = ""
    timestamp: str = ""
    ras: _Ras = msgspec.field(default_factory=_Ras)


def parts_of(text: bytes) -> list[bytes]:
    """The reports that stand behind each other in a file.

    Args:
        text: One or several.

    Returns:
        Each by itself; all as one, where they do not begin as NCCL writes them.
    """
    starts = [found.start() for found in _FIRST.finditer(text)]
    if not starts:
        return [text]
    ends = [*starts[1:], len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def read_json(text: bytes) -> RasReport | None:
    """One report.

    Args:
        text: In JSON.

    Returns:
        The report; None: it is not one, or not whole.
    """
    try:
        reported = msgspec.json.decode(text, type=_Report)
    except (ValueError, RecursionError):  # what msgspec raises are such
        return None
    report = RasReport(
        reported.nccl_version, reported.timestamp, {}, reported.ras.timeouts_count
    )
    for one in reported.communicators:
        comm = _communicator(one)
        if comm is not None:
            report.communicators.setdefault(comm.comm, comm)
    return report


def _communicator(reported: _Communicator) -> RasCommunicator | None:
    """A communicator; None where its members cannot be: it is just being made."""
    every: list[_Rank | _Missing] = [*reported.ranks, *reported.missing_ranks]
    members = {one.rank for one in every}
    size = reported.size
    if len(members) < len(every) or not 0 <= size <= MOST_RANKS:
        return None
    if not all(0 <= member < size for member in members):
        return None
    digits = reported.hash.lower().removeprefix("0x").zfill(16)
    found = RasCommunicator(digits, size, len(reported.ranks))
    for one in every:
        if one.pid > 0:
            found.processes[one.rank] = RasProcess(one.host, one.pid, one.cuda_dev)
    for rank in reported.ranks:
        found.operations += sum(rank.collective_counts.values())
        if (ailment := _ailment(rank)) is not None:
            found.ailments.append(ailment)
    for missing in reported.missing_ranks:
        state = MemberState.LEFT
        if missing.unresponsive or missing.status.unresponsive:
            state = MemberState.SILENT
        if missing.considered_dead or missing.status.considered_dead:
            state = MemberState.DEAD
        found.ailments.append(RasAilment(missing.rank, state))
    counts = {rank.rank: rank.collective_counts for rank in reported.ranks}
    found.counts = differing(counts)
    ends = {MemberState.ABORTED, MemberState.FINALIZED}
    found.ending = any(one.state in ends for one in found.ailments)
    return found


def _ailment(rank: _Rank) -> RasAilment | None:
    status = rank.status
    for result in (status.async_error, status.init_state):
        if result not in {0, _IN_PROGRESS}:
            error = _RESULTS.get(result, f"error {result}")
            return RasAilment(rank.rank, MemberState.FAILED, error)
    if status.abort_flag:
        return RasAilment(rank.rank, MemberState.ABORTED)
    if status.finalize_called or status.destroy_flag:
        return RasAilment(rank.rank, MemberState.FINALIZED)
    return None
