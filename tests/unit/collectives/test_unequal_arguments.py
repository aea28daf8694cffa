"""Lines by which arguments came to differ, from drawings with their source."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch

TRAINING = """
rank = get_rank()
loss = model(batch)
if rank == 1:
    loss = loss * 2
reduce(loss, {root})
"""

ROOTS = """
    rank 0 | reduce(1,root=0)@t.py:5...
    rank 1 | reduce(1,root=1)@t.py:5!
"""


def divergence_of(source: str, drawing: str) -> Divergence:
    run = replace(sketch(drawing), sources={"t.py": cleandoc(source)})
    (divergence,) = divergences(run)
    return divergence


@pytest.mark.parametrize("root", ["rank", "dst=rank", "group_dst=rank"])
def test_the_way_of_the_tensor_is_none_of_the_roots(root: str) -> None:
    found = divergence_of(TRAINING.format(root=root), ROOTS)
    assert "t.py:3" not in found.remarks
    assert {line.place.line for line in found.elsewhere} <= {1, 5}


def test_a_root_that_a_branch_by_rank_chooses_is_told_with_it() -> None:
    source = TRAINING.format(root="dst").replace("loss = loss * 2", "dst = 1")
    found = divergence_of(source, ROOTS)
    assert "What is passed depends on `if rank == 1`" in found.remarks
    assert 3 in {line.place.line for line in found.elsewhere}
