"""Jobs that left with 0: which of them have trained nothing, and how that is told."""

from dataclasses import replace

import pytest

from distdoctor.analysis.optimizer_step.untrained import untrained
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import Conclusion, conclude
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Ended, Failure, Place
from distdoctor.model.findings import Sick
from distdoctor.model.run import Run

NEVER_JOINED = """
rank 0 | exit=0
rank 1 | exit=0
the command left with 0
"""

ALL_FELL = """
rank 0 | start=2  fail=FileNotFoundError@t.py:5  exit=1
rank 1 | start=2  fail=FileNotFoundError@t.py:5  exit=1
the command left with 1
"""


def concluded(run: Run) -> Conclusion:
    return conclude(run, examine(run, every_check()))


def gaps_of(run: Run) -> dict[str, str]:
    return {gap.what: gap.why for gap in concluded(run).gaps}


def test_a_job_without_any_rank_has_trained_nothing() -> None:
    run = Run(world_size=0, exit_code=0, last_words="needs 2 GPUs")
    assert concluded(run).verdict == "unknown"
    assert gaps_of(run)["everything"] == (
        "the script never called torch.distributed.init_process_group or hvd.init, "
        "and the job left with exit code 0: nothing was trained together (DD614); it "
        "last said: needs 2 GPUs"
    )


def test_steps_that_each_rank_makes_for_itself_are_told() -> None:
    run = replace(sketch(NEVER_JOINED), steps={0: 12, 1: 0})
    found = untrained(run)
    assert found is not None
    assert found.why == (
        "ranks {0-1} never called init_process_group or hvd.init; rank 0 made up to 12 "
        "optimizer steps, each for itself"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": 1},
        {"exit_code": None},
        {"stopped": "budget"},
        {"simulated": frozenset({0, 1})},
    ],
    ids=str,
)
def test_a_job_that_did_not_end_well_is_told_otherwise(
    changes: dict[str, object],
) -> None:
    assert untrained(sketch(NEVER_JOINED)) is not None
    assert untrained(replace(sketch(NEVER_JOINED), **changes)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rank",
    [
        "start=2  wrap=ddp:w  batches=0  batches=3  leave  exit=0",
        "start=2  wrap=ddp:w  all_reduce(4)  leave  exit=0",
        "start=2  barrier  leave  exit=0",
        "start=2  fail=ValueError  exit=1",
        "exit=3",
    ],
)
def test_what_was_done_is_not_nothing(rank: str) -> None:
    run = sketch(f"rank 0 | {rank}\nrank 1 | {rank}\nthe command left with 0")
    assert untrained(run) is None


def test_steps_are_training() -> None:
    run = sketch("rank 0 | start=1  batches=0  exit=0\nthe command left with 0")
    assert untrained(run) is not None
    assert untrained(replace(run, steps={0: 1})) is None


# --- what fails before training -------------------------------------------------------


def test_a_failure_of_all_ranks_before_training_is_told_once() -> None:
    assert concluded(sketch(ALL_FELL)).verdict == "unknown"
    assert gaps_of(sketch(ALL_FELL)) == {
        "everything": "ranks {0-1} raised FileNotFoundError at t.py:5 before anything "
        "was trained"
    }


def test_different_failures_are_told_apart_and_not_without_end() -> None:
    lines = [f"rank {n} | start=5  fail=E{n}@t.py:5  exit=1" for n in range(5)]
    why = gaps_of(sketch("\n".join([*lines, "the command left with 1"])))["everything"]
    assert why.startswith("rank 0 raised E0 at t.py:5; rank 1 raised E1")
    assert "E3" not in why
    assert "; and 2 more before anything was trained" in why


def test_a_failure_before_joining_is_told_of_all_ranks() -> None:
    run = sketch("rank 0 | fail=ImportError  exit=1\nrank 1 | fail=ImportError  exit=1")
    assert gaps_of(run)["everything"] == (
        "ranks {0-1} raised ImportError before init_process_group"
    )


@pytest.mark.parametrize(
    ("code", "also"),
    [(1, ""), (0, ", and the job left with exit code 0 all the same")],
)
def test_processes_that_fail_without_a_rank_are_told(code: int, also: str) -> None:
    failure = Failure(rank=-1, error="OSError", place=Place("t.py", 4))
    run = Run(world_size=0, exit_code=code, outside=(failure, failure))
    assert gaps_of(run)["everything"] == (
        f"2 processes raised OSError at t.py:4 before init_process_group{also}"
    )


def test_a_rank_that_its_launcher_ended_on_the_way_is_no_victim() -> None:
    run = sketch(
        "rank 0 | start=2  fail=FileNotFoundError@t.py:5  exit=1\n"
        "rank 1 | start=2  exit=143!!\nthe command left with 1"
    )
    assert concluded(run).verdict == "unknown"


@pytest.mark.parametrize(
    "other",
    [
        "start=2  barrier...  exit=143!!",
        "start=2  barrier^  fail=RuntimeError^  exit=1",
    ],
)
def test_a_rank_that_waited_is_one(other: str) -> None:
    run = sketch(
        "rank 0 | start=2  fail=FileNotFoundError@t.py:5  exit=1\n"
        f"rank 1 | {other}\nthe command left with 1"
    )
    assert concluded(run).verdict == "sick"


def test_a_green_parent_of_ranks_that_never_trained_is_a_warning() -> None:
    run = sketch(ALL_FELL.replace("left with 1", "left with 0"))
    verdicts = examine(run, every_check())
    assert conclude(run, verdicts).verdict == "unknown"
    (severity,) = [
        verdict.severity_of(finding)
        for verdict in verdicts
        if isinstance(verdict, Sick) and verdict.code == "DD613"
        for finding in verdict.findings
    ]
    assert severity == "warning"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("exit=3", "the job left with exit code 3"),
        ("exit=0", "all ranks ended in order, and the job left with exit code 3"),
    ],
)
def test_a_job_that_left_with_a_failure_is_never_well(end: str, why: str) -> None:
    rank = "start=2  all_reduce(4)  leave  "
    lines = f"rank 0 | {rank}exit=0\nrank 1 | {rank}{end}\nthe command left with 3"
    run = sketch(lines)
    assert concluded(run).verdict == "unknown"
    assert gaps_of(run)["why the job failed"] == why


def test_an_abort_on_the_way_out_explains_the_failure() -> None:
    rank = "start=2  all_reduce(4)  leave@t.py:9  "
    run = sketch(
        f"rank 0 | {rank}exit=0\nrank 1 | {rank}exit=134\nthe command left with 1"
    )
    assert concluded(run).verdict == "well"


def test_a_signal_of_ours_is_no_fault_of_the_rank() -> None:
    rank = "start=2  all_reduce(4)  "
    run = sketch(f"rank 0 | {rank}exit=0\nrank 1 | {rank}\nthe command left with 1")
    end = Ended(rank=1, status=190, orderly=False, stopped=True)
    run = replace(run, life={**run.life, 1: [*run.life[1], (1, end)]})
    assert concluded(run).verdict == "unknown"
    assert "distdoctor asks for stacks" in gaps_of(run)["why the job failed"]


RAISED = """
rank 0 | start=2  all_reduce(4)  fail=AttributeError@t.py:9  exit=1
rank 1 | start=2  all_reduce(4)  fail=AttributeError@t.py:9  exit=1
the command left with 1
"""


def test_an_exception_that_ended_the_job_is_told_first() -> None:
    (raised,) = concluded(sketch(RAISED)).raised
    assert (raised.failure.error, raised.ranks) == ("AttributeError", (0, 1))
    assert str(raised.failure.place) == "t.py:9"


def test_an_exception_of_the_parent_is_told() -> None:
    rank = "start=2  all_reduce(4)  leave  exit=0"
    failure = Failure(rank=-1, error="NameError", place=Place("t.py", 20, "<module>"))
    run = sketch(f"rank 0 | {rank}\nrank 1 | {rank}\nthe command left with 1")
    found = concluded(replace(run, outside=(failure,)))
    assert [(one.failure, one.ranks) for one in found.raised] == [(failure, ())]
    assert found.verdict == "unknown"


def test_an_exception_is_told_once() -> None:
    lines = RAISED.replace(
        "rank 0 | start=2  all_reduce(4)  fail=AttributeError@t.py:9",
        "rank 0 | start=2  all_reduce(4)  all_reduce(4)...",
    )
    found = concluded(sketch(lines.replace("...  exit=1", "...")))
    assert (found.verdict, found.raised) == ("sick", ())


def test_an_exception_that_was_survived_is_not_told() -> None:
    run = sketch(RAISED.replace("left with 1", "left with 0"))
    assert concluded(run).raised == ()


# --- addresses ------------------------------------------------------------------------


def test_what_was_led_elsewhere_is_told_and_hides_nothing() -> None:
    run = sketch(
        "rank 0 | start=2  elsewhere=10.1.1.20:22@t.py:4  all_reduce(4)  exit=0\n"
        "rank 1 | start=2  elsewhere=10.1.1.20:22@t.py:4  all_reduce(4)  exit=0"
    )
    assert concluded(run).verdict == "well"
    assert gaps_of(run) == {
        "the address 10.1.1.20:22": "this machine has no such address: ranks {0-1} "
        "used loopback at t.py:4"
    }


def test_a_signal_that_ended_all_ranks_is_told() -> None:
    """Nobody is left who would wait for the dead."""
    one = "start=2  wrap=ddp:w  all_reduce(4)@t.py:7  exit=139!"
    lines = [f"rank {n} | {one}" for n in range(2)]
    why = gaps_of(sketch("\n".join([*lines, "the command left with 1"])))
    assert why["why the job failed"] == (
        "the job left with exit code 1: ranks {0-1} ended by signal 11 (SIGSEGV); the "
        "last call of rank 0 that is known is at t.py:7"
    )
