"""Two ranks on one GPU, by the exception with which NCCL refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.causality import root_findings
from distdoctor.examination.examining import examine, verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure
from distdoctor.model.findings import Certainty, Finding, NotApplicable, Sick
from distdoctor.model.run import Run

BY_TORCH = (
    "NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run "
    "with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This "
    "usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU "
    "detected : rank 1 and rank 0 both on CUDA device 7000"
)

(CHECK,) = (one for one in every_check() if one.code == "DD604")


def saying(run: Run, message: str) -> Run:
    """The run with this text in all its failures."""
    life = {
        rank: [
            (n, replace(one, message=message) if isinstance(one, Failure) else one)
            for n, one in events
        ]
        for rank, events in run.life.items()
    }
    return replace(run, life=life)


def the_finding(run: Run) -> Finding:
    said = verdict(run, CHECK)
    assert isinstance(said, Sick)
    (finding,) = said.findings
    return finding


def test_all_that_raised_are_on_one_gpu() -> None:
    run = sketch(
        """
        rank 0 | start=2  fail=DistBackendError@t.py:4  exit=1
        rank 1 | start=2  fail=DistBackendError@t.py:4  exit=1
        """
    )
    finding = the_finding(saying(run, BY_TORCH))
    assert finding.certainty is Certainty.PROVED
    assert (finding.culprits, finding.victims) == ((), (0, 1))
    (location,) = finding.locations
    assert (location.place.line, location.ranks) == (4, (0, 1))
    assert finding.message.startswith("Ranks {0-1} are on the same GPU")
    assert "set_device" in finding.remedy


def test_the_first_is_named_and_where_the_gpu_was_chosen() -> None:
    run = sketch(
        """
        rank 0 | start=4  barrier@t.py:9  exit=143!
        rank 1 | start=4  barrier@t.py:9  exit=143!
        rank 2 | start=4  barrier@t.py:9  exit=143!
        rank 3 | start=4  shared_gpu(other=2,device=cuda:2)@t.py:3
               | fail=DistBackendError@t.py:4  exit=1
        """
    )
    finding = the_finding(saying(run, BY_TORCH))
    assert (finding.culprits, finding.victims) == ((2, 3), (0, 1))
    assert [one.place.line for one in finding.locations] == [4, 3]


def test_a_rank_that_waits_for_it_is_told_under_it() -> None:
    run = sketch(
        """
        rank 0 | start=2  broadcast(4)@t.py:4...
        rank 1 | start=2  shared_gpu(other=0,device=cuda:0)@t.py:3
               | fail=DistBackendError@t.py:4  exit=1
        """
    )
    told = examine(saying(run, BY_TORCH), every_check())
    (root,) = root_findings(told)
    assert root.sick.code == "DD604"
    assert [one.sick.code for one in root.consequences] == ["DD202"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fail=DistBackendError@t.py:4~  all_reduce(4)  exit=0", BY_TORCH),
        ("fail=DistBackendError@t.py:4  exit=1", "NCCL error: unhandled system error"),
    ],
    ids=["handled", "another error"],
)
def test_what_was_handled_or_is_another_error_is_not_told(
    how: str, message: str
) -> None:
    run = sketch(f"rank 0 | start=2  {how}\nrank 1 | start=2  {how}")
    assert isinstance(verdict(saying(run, message), CHECK), NotApplicable)
