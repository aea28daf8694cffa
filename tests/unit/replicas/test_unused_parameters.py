"""Parameters without a gradient, from drawings."""

from dataclasses import replace

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure
from distdoctor.model.run import Run

REFUSAL = (
    "Expected to have finished reduction in the prior iteration before starting a new "
    "one. Parameter indices which did not receive grad for rank 1: 4 5"
)


def saying(run: Run, message: str) -> Run:
    """The run with this text in all its failures."""
    life = {
        rank: [
            (
                n,
                replace(event, message=message)
                if isinstance(event, Failure) and not event.secondary
                else event,
            )
            for n, event in events
        ]
        for rank, events in run.life.items()
    }
    return replace(run, life=life)


def test_a_refused_forward_is_told_by_what_led_to_it() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9,by=backward)@t.py:5^  fail=RuntimeError^  exit=1
        rank 1 | unreduced=b+c@t.py:5  fail=RuntimeError@t.py:4         exit=1
        """
    )
    (divergence,) = divergences(saying(run, REFUSAL))
    assert divergence.why is Cause.UNUSED
    assert divergence.culprits == (1,)
    assert "On rank 1 b, c got no gradient" in sentence(divergence)
    assert [location.place.line for location in divergence.elsewhere] == [5, 4]


def test_all_ranks_may_leave_it_out() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9)  unreduced=b@t.py:5  fail=RuntimeError@t.py:4  exit=1
        rank 1 | all_reduce(9)  unreduced=b@t.py:5  fail=RuntimeError@t.py:4  exit=1
        """
    )
    (divergence,) = divergences(saying(run, REFUSAL))
    assert (divergence.why, divergence.culprits) == (Cause.UNUSED, ())
    assert "began the next forward pass" in sentence(divergence)


def test_all_ranks_may_leave_it_out_and_the_launcher_ends_the_slow_one() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9)  unreduced=b@t.py:5  fail=RuntimeError@t.py:4  exit=1
        rank 1 | all_reduce(9)  unreduced=b@t.py:5  exit=143!!
        """
    )
    (divergence,) = divergences(saying(run, REFUSAL))
    assert (divergence.why, divergence.culprits) == (Cause.UNUSED, ())


def test_an_open_reducer_is_no_fault_where_ranks_part_ways_elsewhere() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9)@t.py:1  unreduced=b@t.py:5  barrier@t.py:9...
        rank 1 | all_reduce(9)@t.py:1  unreduced=b@t.py:5  all_reduce(9)@t.py:1!
        """
    )
    assert [d.why for d in divergences(run)] == [Cause.SKIPPED]


def test_another_runtime_error_stays_what_it_is() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9,by=backward)@t.py:5...
        rank 1 | fail=RuntimeError@t.py:4  exit=1
        """
    )
    assert [d.why for d in divergences(saying(run, "no such file"))] == [Cause.DIED]


def test_a_gpus_autograd_thread_has_no_line() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9)...
        rank 1 | unreduced=b@t.py:5  exit=0
        """
    )
    assert [d.why for d in divergences(run)] == [Cause.UNUSED]
