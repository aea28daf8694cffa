"""RAS reports → evidence: each is a look at the job, and becomes observations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from distdoctor.errors import StatusUnavailable
from distdoctor.model.events import Observation
from distdoctor.model.observations.communicators import (
    AilingMember,
    CommunicatorLook,
    LaunchedCount,
)
from distdoctor.postmortem.global_ranks import GlobalRanks, global_ranks
from distdoctor.postmortem.job_evidence import STATUS, Evidence, SourceRead
from distdoctor.postmortem.leavings import DAMAGES, Leaving
from distdoctor.postmortem.nccl_ras.ras_client import looks
from distdoctor.postmortem.nccl_ras.ras_json import parts_of, read_json
from distdoctor.postmortem.nccl_ras.ras_report import (
    RasCommunicator,
    RasProcess,
    RasReport,
)
from distdoctor.postmortem.nccl_ras.ras_text import START, read_text, texts_of
from distdoctor.postmortem.readers import Reader

KIND = "report of NCCL's RAS"

NOBODY = -1
"""What a report tells is about the job: no rank has left it."""

_MOST_BYTES = 1 << 27
_MOST_LOOKS = 64
_WHY_UNSEEN = "it left nothing that was found; only NCCL's RAS tells of it"
_OF_JSON = re.compile(rb'"(?:communicators_count|secondary_hash|missing_ranks)"\s*:')


def recognises(name: str, head: bytes) -> bool:
    """Whether a file is a saved report of RAS.

    Args:
        name: Of the file.
        head: Its first bytes.
    """
    del name
    if head.lstrip()[:1] in {b"{", b"["} and _OF_JSON.search(head):
        return b'"nccl_version"' in head or b'"secondary_hash"' in head
    return START.search(head) is not None and b"Job summary" in head


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read saved reports into the evidence.

    Args:
        leavings: The files.
        evidence: Of the job.
    """
    found: list[RasReport] = []
    for leaving in leavings:
        try:
            with leaving.open() as file:
                text = file.read(_MOST_BYTES + 1)
        except DAMAGES as error:
            why = str(error) or type(error).__name__
            evidence.unreadable.append((leaving.path, why))
            continue
        reports = reports_in(text) if len(text) <= _MOST_BYTES else []
        if not reports:
            why = "no whole report is in it"
            evidence.unreadable.append((leaving.path, why))
            continue
        found += reports
        evidence.sources.append(SourceRead(leaving.path, KIND, STATUS))
    tell(found, evidence)


READER = Reader(KIND, recognises, read)


def reports_in(text: bytes) -> list[RasReport]:
    """All whole reports in a file, or in the answer of a server.

    Args:
        text: In JSON or text, one report or several behind each other.

    Returns:
        The reports, in order.
    """
    if START.search(text):
        found = map(read_text, texts_of(text))
    else:
        found = map(read_json, parts_of(text))
    return [report for report in found if report is not None]


def tell(reports: Sequence[RasReport], evidence: Evidence) -> None:
    """Put reports into the evidence, as looks in this order.

    Args:
        reports: Of one job; the last ones count where there are very many.
        evidence: Of the job.
    """
    if not reports:
        return
    dated = all(one.taken for one in reports)
    ordered = sorted(reports, key=lambda one: one.taken) if dated else [*reports]
    ordered = ordered[-_MOST_LOOKS:]
    comms = {
        name: (comm.size, comm.processes)
        for report in ordered
        for name, comm in report.communicators.items()
    }
    who = global_ranks(comms, evidence.world_size)
    evidence.world_size = max(evidence.world_size, who.world_size)
    for rank in range(who.world_size):
        evidence.unseen.setdefault(rank, _WHY_UNSEEN)
    for look, report in enumerate(ordered):
        at_s = _seconds(report.taken)
        for comm in report.communicators.values():
            evidence.add(NOBODY, *_observed(look, at_s, comm, who))
    evidence.remarks += list(_remarks(ordered))


def _seconds(taken: str) -> int:
    """A server's local time in seconds; only differences mean anything."""
    try:
        moment = datetime.strptime(taken, "%Y-%m-%d %H:%M:%S")
        return int(moment.replace(tzinfo=UTC).timestamp())
    except ValueError:
        return 0


def _observed(
    look: int, at_s: int, comm: RasCommunicator, who: GlobalRanks
) -> Iterator[Observation]:
    name = comm.comm
    yield CommunicatorLook(
        look=look,
        at_s=at_s,
        comm=name,
        size=comm.size,
        answered=comm.answered,
        ending=comm.ending,
        operations=comm.operations,
    )
    for one in comm.ailments:
        process = comm.processes.get(one.member, RasProcess())
        yield AilingMember(
            look=look,
            comm=name,
            member=one.member,
            known=who.of(name, one.member, process),
            host=process.host,
            pid=process.pid,
            device=process.device,
            state=one.state.value,
            error=one.error,
        )
    for op, of in comm.counts.items():
        for launched, (members, count) in of.items():
            known = [
                who.of(name, member, comm.processes.get(member, RasProcess()))
                for member in members
            ]
            yield LaunchedCount(
                look=look,
                comm=name,
                op=op,
                launched=launched,
                count=count,
                members=members,
                known=tuple(known) if min(known, default=-1) >= 0 else (),
            )


def _remarks(reports: Sequence[RasReport]) -> Iterator[str]:
    last = reports[-1]
    if last.communicators:
        sizes = sorted((one.size for one in last.communicators.values()), reverse=True)
        shown = ", ".join(map(str, sizes[:8])) + ", …" * (len(sizes) > 8)
        yield (
            f"NCCL {last.version} told of {len(sizes)} communicators, with {shown} "
            f"ranks, in {len(reports)} looks"
        )
    if last.timeouts:
        yield f"RAS waited in vain for {last.timeouts} answers"


def read_live(host: str, port: int, pause_s: float, evidence: Evidence) -> None:
    """Ask a running job, a second time if the first look is suspicious.

    Args:
        host: Where its RAS listens.
        port: Where its RAS listens.
        pause_s: Seconds between two looks.
        evidence: Of the job.

    Raises:
        StatusUnavailable: Nobody answers there, or not with a whole report.
    """
    answers = looks(host, port, pause_s, _is_suspicious)
    reports = [report for answer in answers for report in reports_in(answer)]
    if not reports:
        raise StatusUnavailable(
            f"what NCCL's RAS answered at {host}:{port} is no whole report; look again"
        )
    where = f"ras://{host}:{port}"
    remark = f"{len(reports)} looks"
    evidence.sources.append(SourceRead(where, KIND, STATUS, (), remark))
    tell(reports, evidence)


def _is_suspicious(answer: bytes) -> bool:
    return any(report.is_suspicious for report in reports_in(answer))
