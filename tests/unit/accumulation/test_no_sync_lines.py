"""Which lines decide whether a backward pass is averaged."""

from dataclasses import replace

import pytest

from distdoctor.analysis.accumulation.no_sync_lines import deciding
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place

IN_PLACE = """def train(model, window):
    for n, batch in enumerate(window):
        last = n == PLANNED - 1
        with nullcontext() if last else model.no_sync():
            model(batch).backward()
"""

BY_BRANCH = """def train(model, window, budget):
    for batch in window:
        budget -= len(batch)
        if budget <= 0:
            context = nullcontext()
        else:
            context = model.no_sync()
"""

BY_HELPERS = """def is_last(left):
    if left > 0:
        return False
    return True
def averaging(model, on):
    return nullcontext() if on else model.no_sync()
def train(model, window, left):
    for batch in window:
        with averaging(model, is_last(left)):
            model(batch).backward()
"""

ALWAYS = """def train(model, window):
    with model.no_sync():
        for batch in window:
            model(batch).backward()
"""


@pytest.mark.parametrize(
    ("source", "line", "lines"),
    [
        (IN_PLACE, 4, [3]),
        (BY_BRANCH, 7, [4]),
        (BY_HELPERS, 6, [3, 4, 9]),
        (ALWAYS, 2, []),
    ],
)
def test_the_comparison_is_found_that_a_pass_is_the_last_by(
    source: str, line: int, lines: list[int]
) -> None:
    run = replace(sketch("rank 0 | exit=0"), sources={"t.py": source})
    assert [one.line for one in deciding(run, Place("t.py", line))] == lines
