"""Lines of PyTorch, of launchers and of the kernel that go with NCCL's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.nccl import ComplaintKind
from distdoctor.postmortem.nccl_logs.complaint_kinds import meaning

_RANK = re.compile(r"\[rank(\d{1,6})\]:?")
_GROUP_RANK = re.compile(r"\[(?:PG [^\]]*?)?Rank (\d{1,6})\]")
_GROUP = re.compile(r"\[(PG (?:ID )?\S+)")
_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<sequence>\d{1,15}), )?OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<numel_in>\d{1,18}), NumelOut=(?P<numel_out>\d{1,18}))?"
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d{1,15}), "
    r"last completed (?:NCCL )?work: (-?\d{1,15})"
)
_RAN = re.compile(r"ran for (\d{1,12}) milliseconds")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)*)")
_XID = re.compile(
    r"Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\S*\): (\d+)"
)
_OF_A_KILL = re.compile(r"Out of memory: Kill|oom-kill|SIGKILL|: -9\b")
_KILLED = re.compile(
    r"(?:Kill(?:ed)? process |received by PID |: -9 +\(pid: ?|task=.{0,80}pid="
    r"|: \d+, pid=)"
    r"(\d{1,10})",
    re.IGNORECASE,
)
_SYSLOG_HOST = re.compile(r"(\S+) kernel:")


@dataclass(slots=True)
class WatchdogLines:
    """What the watchdog of a rank said."""

    file: str
    line: int
    rank: int
    group: str = ""
    sequence: int = 0
    op: str = ""
    group_rank: int = -1
    numel_in: int = -1
    numel_out: int = -1
    seconds: float = 0.0
    enqueued: int = -1


@dataclass(slots=True)
class OtherError:
    """An error that others than NCCL tell.

    Attributes:
        kind: Of the error.
        rank: Who told it or whom it is about; -1: not known.
        host: Where it happened; empty: not known.
        pid: Of whom it is about; 0: not known.
        bus: Of a GPU, in hexadecimal as "3b"; empty: not known.
    """

    kind: ComplaintKind
    text: str
    file: str
    line: int
    rank: int = -1
    host: str = ""
    pid: int = 0
    bus: str = ""


@dataclass(slots=True)
class Others:
    """What such lines tell, all together."""

    timeouts: dict[int, WatchdogLines] = field(default_factory=dict)
    errors: list[OtherError] = field(default_factory=list)
    versions: dict[int, str] = field(default_factory=dict)
    ranks_named: int = 0


def others_of(lines: Sequence[tuple[str, int, str]]) -> Others:
    """Read such lines.

    Args:
        lines: File, line and text of each, in order.
    """
    found = Others()
    for file, line, text in lines:
        own = _RANK.search(text)
        rank = int(own[1]) if own and int(own[1]) < MOST_RANKS else -1
        found.ranks_named = max(found.ranks_named, rank + 1)
        if "Watchdog" in text or "last enqueued" in text:
            _timeout(found, file, line, text, rank)
        elif (xid := _XID.search(text)) is not None:
            host = _SYSLOG_HOST.search(text)
            bus = xid[1].split(":")[-2].lower()
            where = host[1].partition(".")[0] if host else ""
            error = OtherError(ComplaintKind.XID, text, file, line, host=where, bus=bus)
            if pid := _KILLED.search(text):
                error.pid = int(pid[1])
            found.errors.append(error)
        elif _OF_A_KILL.search(text) and (pid := _KILLED.search(text)):
            kind = ComplaintKind.KILLED
            found.errors.append(OtherError(kind, text, file, line, pid=int(pid[1])))
        elif text.endswith("(Last error)"):
            kind = meaning(text).kind
            if kind not in {ComplaintKind.NONE, ComplaintKind.OTHER}:
                found.errors.append(OtherError(kind, text, file, line, rank))
        elif "DistBackendError" in text or "NCCL error in" in text:
            if version := _VERSION.search(text):
                found.versions.setdefault(rank, version[1])
            kind = ComplaintKind.EXCEPTION
            found.errors.append(OtherError(kind, text, file, line, rank))
        elif "waiting for" in text:
            kind = ComplaintKind.WAITING
            found.errors.append(OtherError(kind, text, file, line, rank))
    return found


def _timeout(found: Others, file: str, line: int, text: str, rank: int) -> None:
    inner = _GROUP_RANK.search(text)
    if rank < 0:
        if inner is None:
            return
        rank = int(inner[1])
        if rank >= MOST_RANKS:
            return
        found.ranks_named = max(found.ranks_named, rank + 1)
    reported = found.timeouts.setdefault(rank, WatchdogLines(file, line, rank))
    if (work := _WORK.search(text)) and not reported.op:
        reported.sequence = int(work["sequence"] or 0)
        reported.op = work["op"]
        reported.numel_in = int(work["numel_in"] or -1)
        reported.numel_out = int(work["numel_out"] or -1)
    if (ran := _RAN.search(text)) and not reported.seconds:
        reported.seconds = int(ran[1]) / 1000
    if (last := _LAST.search(text)) and reported.enqueued < 0:
        reported.enqueued = int(last[1])
    if inner is not None and reported.group_rank < 0:
        reported.group_rank = int(inner[1])
    if group := _GROUP.search(text):
        reported.group = reported.group or group[1].rstrip("]")
