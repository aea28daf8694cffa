"""Threads that race on one group, and threads that only look as if."""

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.operations import IN_BACKWARD
from distdoctor.model.run import Run


def reasons(run: Run) -> set[Cause]:
    return {divergence.why for divergence in divergences(run)}


def test_a_call_that_a_rank_leaves_out_is_not_a_race() -> None:
    """Rank 0's main thread goes past the call at line 7; the other thread is behind."""
    run = sketch(
        """
        rank 0 | all_reduce(8)@t.py:7  all_reduce(1)@m.py:3...%2  barrier@t.py:9!
        rank 1 | all_reduce(8)@t.py:7  all_reduce(8)@t.py:7!  all_reduce(1)@m.py:3...%2
        """
    )
    assert Cause.RACE not in reasons(run)


def test_another_call_of_the_other_thread_is_not_a_race() -> None:
    """The threads take turns; one of them makes another call than its peer."""
    run = sketch(
        """
        rank 0 | all_reduce(8)@t.py:7  all_reduce(1)@m.py:3%2  all_reduce(8)@t.py:7...
        rank 1 | all_reduce(8)@t.py:7  all_reduce(2)@m.py:3!%2
        """
    )
    assert reasons(run) == {Cause.NUMEL}


def test_threads_that_follow_each_other_do_not_race() -> None:
    """A new thread for each checkpoint, joined before the next begins."""
    run = sketch(
        """
        rank 0 | all_reduce(1)@m.py:3%2  over=2  all_reduce(4)@m.py:3...%3
        rank 1 | all_reduce(1)@m.py:3%5  over=5  all_reduce(6)@m.py:3!%6
        """
    )
    assert reasons(run) == {Cause.NUMEL}


def test_the_threads_of_autograd_do_not_race_with_the_one_that_waits() -> None:
    """On CUDA, autograd's thread issues what DistributedDataParallel reduces."""
    run = sketch(
        """
        rank 0 | all_reduce(8)@t.py:7%2  barrier@t.py:9  all_reduce(8)@t.py:7...%2
        rank 1 | all_reduce(8)@t.py:7%3  all_reduce(8)@t.py:7!%3
        rank 2 | all_reduce(8)@t.py:7%3  all_reduce(8)@t.py:7!%3
        """
    )
    run.calls["flags"][run.calls["thread"] != 0] |= IN_BACKWARD
    assert Cause.RACE not in reasons(run)


def test_a_line_that_both_threads_run_tells_nothing() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(8)@t.py:7  all_reduce(8)@t.py:7%2  all_reduce(1)@t.py:9...
        rank 1 | all_reduce(8)@t.py:7  all_reduce(8)@t.py:7%2  barrier@t.py:11!
        """
    )
    assert Cause.RACE not in reasons(run)


@pytest.mark.parametrize("thread", ["%2", "%3"])
def test_a_helper_that_both_threads_call_races(thread: str) -> None:
    """One line, and the call that a peer made now comes later, from another thread."""
    run = sketch(
        f"""
        rank 0 | all_reduce(8)@t.py:7...  all_reduce(1)@t.py:7...{thread}
        rank 1 | all_reduce(1)@t.py:7!%5
        """
    )
    assert reasons(run) == {Cause.RACE}


def test_a_callback_that_is_overtaken_races_though_no_line_is_known() -> None:
    """A hook chains two collectives; the next bucket's comes in between on one rank."""
    run = sketch(
        """
        rank 0 | all_reduce(8)@t.py:7  all_reduce(2)...%2  all_reduce(4)@t.py:7!
        rank 1 | all_reduce(8)@t.py:7  all_reduce(4)@t.py:7!  all_reduce(2)...%3
        """
    )
    assert reasons(run) == {Cause.RACE}
