"""Loops that exchange parameters where buffers are what differs."""

from dataclasses import replace

import pytest

from distdoctor.analysis.replicas.exchanged_parameters import exchanging_parameters
from distdoctor.model.drawing import sketch

MERGE = """def merge(net):
    for t in net.parameters():
        if t.is_floating_point():
            dist.all_reduce(t)
            t /= world
"""


def lines(source: str, drawing: str = "") -> list[int]:
    drawing = drawing or (
        "rank 0 | all_reduce(6)@t.py:4\nrank 1 | all_reduce(6)@t.py:4"
    )
    run = replace(sketch(drawing), sources={"t.py": source})
    return [place.line for place in exchanging_parameters(run, (0, 1))]


def test_a_loop_that_sent_parameters_is_found() -> None:
    assert lines(MERGE) == [2]
    named = MERGE.replace("t in net.parameters", "n, t in net.named_parameters")
    assert lines(named.replace("all_reduce(t)", "broadcast(t.data, 0)")) == [2]


@pytest.mark.parametrize(
    "source",
    [
        MERGE.replace("parameters", "buffers"),
        MERGE.replace("all_reduce(t)", "all_reduce(t.grad)"),
        MERGE + "    for b in net.buffers():\n        dist.all_reduce(b)\n",
        MERGE.replace("all_reduce(t)", "all_reduce(loss)"),
        "broken(",
    ],
)
def test_other_loops_are_not(source: str) -> None:
    assert lines(source) == []


def test_a_loop_that_not_all_ranks_went_through_is_not() -> None:
    drawing = "rank 0 | all_reduce(6)@t.py:4\nrank 1 | all_reduce(6)@t.py:9"
    assert lines(MERGE, drawing) == []
