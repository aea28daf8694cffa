"""Where ranks in a circle chose what comes first, from sources and drawings."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_choices import chosen_by_rank
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.run import Frame

PLANS = cleandoc("""
    class Mesh:
        def __init__(self):
            self.row, self.column = divmod(dist.get_rank(), 2)
    def plan(mesh):
        if (mesh.row + mesh.column) % 2 == 0:
            return (ROWS, COLUMNS)
        return (COLUMNS, ROWS)
    def mean(tensor, axis):
        all_reduce(tensor, group=groups[axis])
    def finish(order):
        for axis in order:
            if axis is ROWS:
                mean(flat, ROWS)
            else:
                mean(flat, COLUMNS)
    mesh = Mesh()
    finish(plan(mesh))
""")


@pytest.mark.parametrize("line", [13, 15])
def test_the_plans_that_the_rank_chooses_are_found(line: int) -> None:
    found = chosen_by_rank(Program({"t.py": PLANS}), Place("t.py", line))
    assert [place.line for place in found] == [6, 7]


def test_a_plan_for_all_ranks_is_none() -> None:
    source = PLANS.replace("(mesh.row + mesh.column) % 2 == 0", "options.rows_first")
    assert chosen_by_rank(Program({"t.py": source}), Place("t.py", 13)) == []


def test_a_line_that_all_come_to_has_none() -> None:
    assert chosen_by_rank(Program({"t.py": PLANS}), Place("t.py", 9)) == []


def test_those_of_a_circle_learn_where_they_part() -> None:
    run = sketch(
        """
        group a | 0 1
        group b | 0 1
        rank 0 | all_reduce(4)/a@t.py:9...
        rank 1 | all_reduce(4)/b@t.py:9...
        """
    )

    def stack(line: int) -> list[Frame]:
        lines = [(9, "mean"), (line, "finish"), (17, "<module>")]
        return [Frame(Place("t.py", n, function)) for n, function in lines]

    run = replace(run, sources={"t.py": PLANS}, stacks={0: stack(13), 1: stack(15)})
    (found,) = divergences(run)
    assert found.why is Cause.CIRCLE
    ranks_at = {one.place.line: one.ranks for one in found.elsewhere}
    assert ranks_at == {6: (0, 1), 7: (0, 1), 13: (0,), 15: (1,)}
