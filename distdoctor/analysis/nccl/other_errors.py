"""Errors of which nothing is known but NCCL's own result."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.nccl.logged_job import LoggedJob, Told, parties_of, who
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.nccl import ComplaintKind

_NETWORK = re.compile(r"NET/|[Ss]ocket|[Cc]onnect|ibv_|\bIB\b|[Bb]ootstrap|peer")

_CODES = {1: "DD606", 2: "DD603", 4: "DD608", 5: "DD608", 6: "DD605", 8: "DD605"}
"""By result, the disease that it is most like."""

_RESULTS = {
    1: "an error of CUDA",
    2: "an error of the system",
    4: "an invalid argument",
    5: "an invalid use",
    6: "an error of a peer or the network",
    8: "a timeout",
}


def other_errors(job: LoggedJob) -> Iterator[Told]:
    """The first error of no kind that is known, by the result that it led to.

    Args:
        job: The job.
    """
    stated = [
        (party, one)
        for party, one in job.complaints(ComplaintKind.OTHER)
        if not one.mild and one.status in _CODES
    ]
    if not stated:
        return
    first = stated[0][1]
    alike = [(p, one) for p, one in stated if one.status == first.status]
    parties = parties_of(alike)
    code = "DD605" if _NETWORK.search(first.text) else _CODES[first.status]
    yield Told(
        code=code,
        message=f"{capital(who(parties))} had {_RESULTS[first.status]}: {first.text}",
        parties=parties if len(parties) * 2 <= len(job.parties) else (),
        exhibits=[one for _, one in alike],
        certainty=Certainty.LIKELY,
        details={"status": first.status},
    )
