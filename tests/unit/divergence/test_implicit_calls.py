"""Calls out of finalizers and signal handlers, and calls that only look so."""

from dataclasses import replace

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.run import Frame, Run

DRAWING = """
    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:3...
    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
"""


def inside(*functions: str, source: str = "") -> Run:
    """The run above, with rank 1 in these functions, innermost first."""
    run = sketch(DRAWING)
    sites = [
        replace(place, function=functions[0]) if place == Place("t.py", 3) else place
        for place in run.sites
    ]
    frames = [
        Frame(Place("t.py", 3 + 10 * n, function))
        for n, function in enumerate(functions)
    ]
    return replace(run, sites=sites, stacks={1: frames}, sources={"t.py": source})


def only(run: Run) -> Divergence:
    (divergence,) = divergences(run)
    return divergence


def test_a_finalizer_is_named() -> None:
    found = only(inside("Shard.__del__", "train"))
    assert (found.why, found.culprits) == (Cause.CALLBACK, (1,))
    assert "Shard.__del__" in sentence(found)


def test_a_function_that_a_finalizer_calls_is_one_too() -> None:
    assert only(inside("close", "__del__", "train")).why is Cause.CALLBACK


@pytest.mark.parametrize(
    "source",
    [
        "signal.signal(signal.SIGUSR1, on_signal)",
        "weakref.finalize(shard, self.on_signal)",
        "atexit.register(on_signal)",
    ],
)
def test_a_registered_function_is_named(source: str) -> None:
    found = only(inside("save", "on_signal", "train", source=source))
    assert found.why is Cause.CALLBACK
    assert source.partition("(")[0] in sentence(found)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "signal.signal(signal.SIGUSR1, on_signal)\non_signal()",
        "signal.signal(signal.SIGUSR1, another)",
        "shard.register(on_signal)",
        "signal.signal(",
    ],
)
def test_a_function_that_is_called_plainly_is_not(source: str) -> None:
    found = only(inside("save", "on_signal", "train", source=source))
    assert found.why is not Cause.CALLBACK


def test_a_finalizer_that_all_ranks_run_is_not_blamed() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:3!
        rank 1 | all_reduce(2)@t.py:3!
        """
    )
    sites = [place and replace(place, function="A.__del__") for place in run.sites]
    assert only(replace(run, sites=sites)).why is Cause.NUMEL
