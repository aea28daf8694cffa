"""Lines of others than NCCL: a kill is one that names the process."""

from __future__ import annotations

import pytest

from distdoctor.model.observations.nccl import ComplaintKind
from distdoctor.postmortem.nccl_logs.torch_lines import others_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("failed (exitcode: -9 (pid: 12)", ComplaintKind.KILLED),
        ("Out of memory: Killed process 12 (python)", ComplaintKind.KILLED),
        ("[rank1]: DistBackendError: NCCL error in x.cpp:3: -95", "exception"),
        ("[rank1]: DistBackendError: NCCL error in x.cpp:3, SIGKILL", "exception"),
        ("[rank1]: DistBackendError: code: -95 (pid: 12)", "exception"),
    ],
)
def test_the_kind_of_a_line(text: str, kind: str) -> None:
    (error,) = others_of([("a.log", 1, text)]).errors
    assert error.kind == kind
    assert error.pid == (12 if kind == ComplaintKind.KILLED else 0)
