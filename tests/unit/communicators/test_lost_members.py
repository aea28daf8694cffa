"""Who is gone, as RAS tells it: an error only where the others need him."""

from __future__ import annotations

from dataclasses import replace

from ras_reports import DEAD, LEFT, SILENT, communicator, report, run_of_reports

from distdoctor.analysis.communicators.lost_members import lost_members
from distdoctor.model.findings import Certainty, Severity

WENT_ON = {rank: {"AllReduce": 650} for rank in range(8)}


def test_a_dead_rank_among_living_ones_is_an_error() -> None:
    (found,) = lost_members(run_of_reports(report(communicator(8, missing={5: DEAD}))))
    assert found.culprits == (5,)
    assert found.severity is None
    assert found.certainty is Certainty.LIKELY
    assert "Rank 5 (process 1005 on 10.0.0.0, GPU 5) cannot be reached" in found.message


def test_a_rank_is_told_once_of_all_its_communicators() -> None:
    part = communicator(2, missing={1: DEAD}, processes=[3, 5], digest="0x2")
    looks = report(communicator(8, missing={5: DEAD}), part)
    assert len(list(lost_members(run_of_reports(looks)))) == 1
    assert not list(lost_members(run_of_reports(looks), {5}))


def test_a_job_that_goes_on_does_not_need_it() -> None:
    first = report(communicator(8, missing={5: DEAD}), second=1)
    later = report(communicator(8, WENT_ON, missing={5: DEAD}), second=9)
    (found,) = lost_members(run_of_reports(first, later))
    assert found.severity is Severity.WARNING


def test_most_ranks_are_gone_at_a_healthy_end() -> None:
    gone = dict.fromkeys(range(1, 8), DEAD)
    (found,) = lost_members(run_of_reports(report(communicator(8, missing=gone))))
    assert found.severity is Severity.WARNING


def test_of_two_ranks_neither_is_the_majority() -> None:
    looks = report(communicator(2, missing={1: DEAD}))
    (found,) = lost_members(run_of_reports(looks))
    assert found.severity is Severity.WARNING


def test_a_communicator_that_ends_needs_nobody() -> None:
    for flag in ("finalize_called", "destroy_flag", "abort_flag"):
        ending = communicator(8, missing={5: DEAD}, status={0: {flag: True}})
        assert not list(lost_members(run_of_reports(report(ending))))


def test_who_does_not_answer_yet_is_a_warning() -> None:
    looks = report(communicator(8, missing={5: SILENT}))
    (found,) = lost_members(run_of_reports(looks))
    assert (found.severity, found.culprits) == (Severity.WARNING, (5,))


def test_who_has_left_is_told_only_where_nothing_moves() -> None:
    first = report(communicator(8, missing={5: LEFT}), second=1)
    later = report(communicator(8, missing={5: LEFT}), second=9)
    moved = report(communicator(8, WENT_ON, missing={5: LEFT}), second=9)
    assert not list(lost_members(run_of_reports(first)))
    assert not list(lost_members(run_of_reports(first, moved)))
    (found,) = lost_members(run_of_reports(first, later))
    assert found.severity is Severity.WARNING


def test_a_job_that_is_well_has_lost_nobody() -> None:
    assert not list(lost_members(run_of_reports(report(communicator(8)))))


def test_a_member_of_a_part_is_not_named_as_a_rank_of_a_larger_job() -> None:
    run = run_of_reports(report(communicator(8, missing={5: DEAD})))
    (found,) = lost_members(replace(run, world_size=16))
    assert found.culprits == ()
    assert "Member 5 (process 1005 on 10.0.0.0, GPU 5)" in found.message
