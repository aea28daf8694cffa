"""Each error that a rank meets by itself is told by the check of its disease."""

from __future__ import annotations

import pytest

from distdoctor.analysis.nccl.local_errors import CODES
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import examine
from distdoctor.model.events import Event
from distdoctor.model.findings import Sick
from distdoctor.model.observations.nccl import (
    ComplaintKind,
    NcclComplaint,
    NcclProcess,
)
from distdoctor.model.run import Run


def found(*complaints: NcclComplaint) -> dict[str, tuple[int, ...]]:
    """By code, who is at fault, where three ranks of a host log such complaints."""
    life: dict[int, list[tuple[int, Event]]] = {
        rank: [(0, NcclProcess(rank=rank, host="a", pid=rank + 1))] for rank in range(3)
    }
    for one in complaints:
        life[one.rank].append((0, one))
    run = Run(world_size=3, life=life, closed=True, evidence=("log",))
    return {
        verdict.code: verdict.findings[0].culprits
        for verdict in examine(run, every_check())
        if isinstance(verdict, Sick)
    }


def complaint(rank: int, kind: ComplaintKind, text: str = "so it is") -> NcclComplaint:
    """A message of a rank that led to a failure."""
    return NcclComplaint(
        rank=rank, kind=kind.value, host="a", text=text, status=1, order=rank + 1
    )


@pytest.mark.parametrize("kind", CODES)
def test_each_kind_has_its_words_in_the_check_of_its_disease(
    kind: ComplaintKind,
) -> None:
    reported = found(complaint(1, kind, "oom-kill: it was killed"))
    assert reported[CODES[kind]] == (1,)


def test_ranks_that_only_saw_a_connection_closed_are_not_at_fault() -> None:
    reported = found(
        complaint(0, ComplaintKind.SHM),
        complaint(1, ComplaintKind.SHM),
        complaint(2, ComplaintKind.CLOSED),
    )
    assert reported == {"DD603": (0, 1)}


def test_who_was_killed_for_an_unknown_reason_has_met_no_limit() -> None:
    reported = found(
        complaint(0, ComplaintKind.CLOSED),
        complaint(1, ComplaintKind.KILLED, "exitcode  : -9 (pid: 2)"),
        complaint(2, ComplaintKind.CLOSED),
    )
    assert reported == {"DD605": (1,)}
