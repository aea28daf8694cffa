"""Tensors on devices that cannot communicate, from drawings."""

from dataclasses import replace

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Failure
from distdoctor.model.run import Run


def saying(run: Run, message: str) -> Run:
    """The run with this text in the failures that are the ranks' own."""
    life = {
        rank: [
            (n, replace(event, message=message))
            if isinstance(event, Failure) and not event.secondary
            else (n, event)
            for n, event in events
        ]
        for rank, events in run.life.items()
    }
    return replace(run, life=life)


@pytest.mark.parametrize(
    "message",
    [
        "No backend type associated with device type cpu",
        "Tensors must be CUDA and dense",
        "ProcessGroupGloo::allreduce: unsupported device type mps",
    ],
)
def test_a_refused_device_is_told_on_all_ranks_and_on_some(message: str) -> None:
    everyone = sketch(
        """
        rank 0 | all_reduce(9)@t.py:5^  fail=RuntimeError@t.py:5  exit=1
        rank 1 | all_reduce(9)@t.py:5^  fail=RuntimeError@t.py:5  exit=1
        """
    )
    (divergence,) = divergences(saying(everyone, message))
    assert (divergence.why, divergence.culprits) == (Cause.DEVICE, ())
    one = sketch(
        """
        rank 0 | all_reduce(9)@t.py:5  barrier@t.py:6...
        rank 1 | all_reduce(9)@t.py:5  fail=RuntimeError@t.py:6  exit=1
        """
    )
    (divergence,) = divergences(saying(one, message))
    assert (divergence.why, divergence.culprits) == (Cause.DEVICE, (1,))


def test_another_error_is_not_about_devices() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(9)@t.py:5^  fail=RuntimeError@t.py:5  exit=1
        rank 1 | all_reduce(9)@t.py:5^  fail=RuntimeError@t.py:5  exit=1
        """
    )
    assert not divergences(saying(run, "expected scalar type Float"))


def test_a_meta_tensor_elsewhere_is_not_blamed_for_another_fault() -> None:
    run = sketch(
        """
        rank 0 | misplaced=meta@t.py:2  barrier@t.py:9...
        rank 1 | all_reduce(9)@t.py:5   all_reduce(9)@t.py:5...
        """
    )
    assert Cause.DEVICE not in {divergence.why for divergence in divergences(run)}
