"""Reads Horovod's timelines: what was being negotiated where the last of them ends."""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

from distdoctor.model.observations.failures import OpenNegotiation
from distdoctor.postmortem.horovod_timeline.negotiations import (
    TimelineEnd,
    end_of,
)
from distdoctor.postmortem.horovod_timeline.timeline_events import (
    BEGAN,
    TraceEvent,
    events,
)
from distdoctor.postmortem.job_evidence import LOG, Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.readers import Reader

KIND = "Horovod timeline"

_MOST_TOLD = 8
_MOST_RANKS_TOLD = 1024
_DAMAGED = (EOFError, lzma.LZMAError, zlib.error)

_OURS = re.compile(rb'"NEGOTIATE_[A-Z]{1,30}"|"CYCLE_START"|"' + BEGAN.encode() + rb'"')

_OPERATIONS = {
    "ALLREDUCE": "all_reduce",
    "ADASUM": "all_reduce",
    "ALLGATHER": "all_gather",
    "BROADCAST": "broadcast",
    "ALLTOALL": "all_to_all",
    "REDUCESCATTER": "reduce_scatter",
    "BARRIER": "barrier",
}


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a timeline of Horovod's.

    Args:
        name: Its name, which does not matter.
        head: Its first bytes.
    """
    del name
    start = head[:64].lstrip()
    return start[:1] in {b"[", b"{"} and b'"ph"' in head and bool(_OURS.search(head))


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read timelines into the evidence.

    Args:
        leavings: The files.
        evidence: What is known of the job.
    """
    ends: list[tuple[Leaving, TimelineEnd]] = []
    for leaving in leavings:
        broken: list[str] = []
        try:
            end = end_of(_until_broken(leaving, broken))
        except OSError as error:
            evidence.unreadable.append((leaving.path, str(error)))
            continue
        if broken:
            evidence.remarks.append(
                f"{leaving.path}: read up to where it is {broken[0]}"
            )
        if not end.events:
            evidence.left_out.append(
                (leaving.path, "no event of an operation is in it")
            )
            continue
        ends.append((leaving, end))
    last = _last(ends, evidence)
    if last is not None:
        _tell(*last, evidence)


READER = Reader(KIND, recognises, read)


def _until_broken(leaving: Leaving, broken: list[str]) -> Iterator[TraceEvent]:
    """The events of a file, up to where what it is packed with is damaged."""
    with leaving.open() as file:
        try:
            yield from events(file)
        except _DAMAGED as error:
            broken.append(f"damaged ({error})")


def _last(
    ends: Sequence[tuple[Leaving, TimelineEnd]], evidence: Evidence
) -> tuple[Leaving, TimelineEnd] | None:
    """The timeline that was written last; the others say nothing of how it ended."""
    if len(ends) < 2:
        return ends[0] if ends else None
    if any(end.began < 0 for _, end in ends):
        why = "of several timelines, one does not tell when it began"
        evidence.set_aside.append((f"{len(ends):,} × {KIND}", why))
        evidence.left_out += [(leaving.path, why) for leaving, _ in ends]
        return None
    last = max(ends, key=lambda one: one[1].began + one[1].last)
    for leaving, end in ends:
        if leaving is not last[0]:
            same = end.began == last[1].began
            why = (
                f"an earlier part of {last[0].path}"
                if same
                else f"it is of an earlier job than {last[0].path}"
            )
            evidence.left_out.append((leaving.path, why))
    return last


def _tell(leaving: Leaving, end: TimelineEnd, evidence: Evidence) -> None:
    ranks = tuple(range(min(end.ranks, _MOST_RANKS_TOLD)))
    evidence.sources.append(SourceRead(leaving.path, KIND, LOG, ranks))
    evidence.world_size = max(evidence.world_size, end.ranks, 1)
    for rank in range(1, end.ranks):
        why = "only the timeline, which rank 0 writes, tells of it"
        evidence.unseen.setdefault(rank, why)
    evidence.add(0, *_observed(end))
    if end.running:
        evidence.remarks.append(
            f"{leaving.path} ends while {_listed(end.running)} is under way, to which "
            "all ranks had come"
        )


def _observed(end: TimelineEnd) -> Iterable[OpenNegotiation]:
    opening = end.negotiating[-1] if end.negotiating and end.last_is_opening else None
    for one in end.negotiating[:_MOST_TOLD]:
        # What is kept back is one rank's coming: to any, or to what was opened last.
        is_kept_back = not end.last_is_mark and (opening is None or opening is one)
        yield OpenNegotiation(
            rank=0,
            tensor=one.tensor,
            op=_OPERATIONS.get(one.op, one.op.lower()),
            came=tuple(sorted(one.came))[:_MOST_RANKS_TOLD],
            members=one.members or (max(end.sizes) if len(end.sizes) == 1 else 0),
            mixed=len(end.sizes) > 1,
            kept_back=is_kept_back,
            cached=one.again and not one.came,
            seconds=(end.last - end.moved) / 1e6,
            longest=end.longest / 1e6,
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name or "an operation" for name in names[:_MOST_TOLD])
    return shown + (
        f" and {len(names) - _MOST_TOLD:,} more" * (len(names) > _MOST_TOLD)
    )
