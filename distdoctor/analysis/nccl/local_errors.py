"""Errors that a process meets by itself: its GPU, its memory, its limits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import (
    LoggedJob,
    Party,
    Told,
    Wording,
    who,
)
from distdoctor.model.observations.nccl import ComplaintKind, NcclComplaint


@dataclass(frozen=True, slots=True)
class LocalError:
    """An error that ranks met by themselves.

    Attributes:
        parties: Who met it.
        kind: Its kind, a key of `CODES`.
        text: The first message that tells of it.
    """

    parties: Sequence[Party]
    kind: ComplaintKind
    text: str


def worded(
    kinds: Mapping[ComplaintKind, tuple[str, str]],
) -> Callable[[LocalError], Wording]:
    """How a check words such errors.

    Args:
        kinds: By kind, what follows the name of who met it, and the cure.
    """

    def words(error: LocalError) -> Wording:
        what, cure = kinds[error.kind]
        return Wording(f"{capital(who(error.parties))} {what}: {error.text}", cure)

    return words


CODES = {
    ComplaintKind.XID: "DD606",
    ComplaintKind.GPU_FAULT: "DD606",
    ComplaintKind.GPU_MEMORY: "DD606",
    ComplaintKind.NVLS: "DD606",
    ComplaintKind.NVLINK_OFF: "DD606",
    ComplaintKind.PEER_ACCESS: "DD606",
    ComplaintKind.CUDA: "DD606",
    ComplaintKind.SHM: "DD603",
    ComplaintKind.SHM_ATTACH: "DD603",
    ComplaintKind.LOCKED_MEMORY: "DD603",
    ComplaintKind.IMEX: "DD603",
    ComplaintKind.FILES: "DD603",
    ComplaintKind.THREADS: "DD603",
    ComplaintKind.KILLED: "DD603",
    ComplaintKind.HOST_MEMORY: "DD603",
    ComplaintKind.INTERFACE: "DD602",
    ComplaintKind.TOPOLOGY: "DD601",
    ComplaintKind.PEER_MEMORY: "DD605",
}
"""By kind, the disease; the most telling comes first."""

_OF_HOST = frozenset(
    {
        ComplaintKind.NVLS,
        ComplaintKind.NVLINK_OFF,
        ComplaintKind.SHM,
        ComplaintKind.LOCKED_MEMORY,
        ComplaintKind.IMEX,
        ComplaintKind.FILES,
        ComplaintKind.THREADS,
        ComplaintKind.INTERFACE,
        ComplaintKind.PEER_MEMORY,
    }
)
"""They concern all ranks of a host."""

_OF_MEMORY = re.compile("out of memory|oom", re.IGNORECASE)
"""In a line of the kernel that tells why it killed a process."""

_ECHOES = {ComplaintKind.HOST_MEMORY, ComplaintKind.CUDA, ComplaintKind.THREADS}
"""What may follow from any other of them."""


def local_errors(job: LoggedJob) -> Iterator[Told]:
    """The first such error, and all who have it.

    Args:
        job: The job.
    """
    found = [
        (party, one) for party, one in job.complaints(*CODES) if _is_fatal(job, one)
    ]
    if not found:
        return
    telling = [pair for pair in found if pair[1].kind not in _ECHOES] or found
    first = telling[0][1]
    if first.order == 0:  # nobody knows the order
        order = list(CODES)
        telling.sort(key=lambda pair: order.index(ComplaintKind(pair[1].kind)))
        first = telling[0][1]
    kind = ComplaintKind(first.kind)
    shown = [one for _, one in found if one.kind == kind]
    by_host: dict[str, list[Party]] = defaultdict(list)
    for party, one in found:
        if one.kind == kind and party not in by_host[party.host]:
            by_host[party.host].append(party)
    parties: list[Party] = []
    for host, some in by_host.items():
        is_whole = kind in _OF_HOST and host and len(some) > 1
        others = [one for one in job.on(host) if one not in some] if is_whole else []
        # Who only saw a connection closed had not come to the limit.
        parties += [*some, *(one for one in others if not one.of(ComplaintKind.CLOSED))]
    yield Told(
        code=CODES[kind],
        facts=LocalError(parties, kind, first.text),
        parties=parties,
        exhibits=shown,
        details={"kind": kind.value},
    )


def _is_fatal(job: LoggedJob, one: NcclComplaint) -> bool:
    """Whether it may have been the end; what is told as information may not."""
    if one.kind == ComplaintKind.KILLED:
        return _OF_MEMORY.search(one.text) is not None  # else nobody knows what for
    if one.kind == ComplaintKind.IMEX or one.mild:
        return bool(one.status) and job.failed
    return True
