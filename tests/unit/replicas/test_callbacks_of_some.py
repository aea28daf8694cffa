"""Callbacks that are made, or handed out, for some ranks alone."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch

CALLBACKS = cleandoc("""
    class Preview:
        def end(self, model):
            dist.all_reduce(model.score)
    def fit(callbacks):
        for one in callbacks:
            one.end(model)
        dist.barrier()
    callbacks = []
    if {test}:
        callbacks.append(Preview())
    fit(callbacks)
""")


@pytest.mark.parametrize(
    ("test", "is_blamed"), [("dist.get_rank() == 0", True), ("verbose", False)]
)
def test_a_callback_of_one_rank_is_behind_what_hands_it_out(
    test: str, is_blamed: bool
) -> None:
    met = "rank 0 | all_reduce(4)@t.py:3!\nrank 1 | barrier@t.py:7!"
    source = CALLBACKS.format(test=test)
    (found,) = divergences(replace(sketch(met), sources={"t.py": source}))
    assert (found.culprits == (0,) and "get_rank" in sentence(found)) == is_blamed
