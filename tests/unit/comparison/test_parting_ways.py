"""Where in a step a job and its reference part, in words."""

from typing import Any

import pytest

from distdoctor.analysis.comparison.parting_ways import (
    lines_at_fault,
    ranks_at_fault,
    ways_in_words,
)
from distdoctor.model.events import Place
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    MEAN,
    OTHER,
    SUM,
    TIMES,
    WEIGHTS,
    BackwardCompared,
    Departed,
    ForwardCompared,
    LossCompared,
)
from distdoctor.model.run import Run

LINE = Place("train.py", 9, "forward")

GRADIENT = Departed(rank=0, name="w")


def run_of(*events: ForwardCompared | LossCompared | BackwardCompared) -> Run:
    return Run.of_events(
        {rank: [one for one in events if one.rank == rank] for rank in (0, 1)}
    )


def told(*events: ForwardCompared | LossCompared | BackwardCompared) -> str:
    return ways_in_words(run_of(*events), [GRADIENT])


SAME = ForwardCompared(rank=0, modules=3)


def test_the_first_module_that_parts_is_named_and_where_it_is_called() -> None:
    parted = ForwardCompared(
        rank=1, modules=3, parted=True, module="b.attn", behind="b.norm", place=LINE
    )
    words = told(SAME, parted)
    assert "`b.attn` is the first on rank 1" in words
    assert "`b.norm` before it gives the same" in words
    run = run_of(SAME, parted)
    (location,) = lines_at_fault(run, [GRADIENT])
    assert (location.place, location.remark) == (LINE, "calls b.attn")


def test_other_losses_are_told_with_their_figures() -> None:
    losses = [
        LossCompared(rank=rank, here=1.5 + rank, there=4.0, relation=OTHER)
        for rank in (0, 1)
    ]
    words = told(SAME, *losses)
    assert "all 3 modules that were compared give the same, but" in words
    assert "1.5 on rank 0, 2.5 on rank 1, and in the reference from 4" in words


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (BackwardCompared(rank=0, right=True), "were right when the backward"),
        (BackwardCompared(rank=0, terms=True), "each rank had a right term"),
        (BackwardCompared(rank=0, wrong=True), "were wrong when the backward"),
        (
            BackwardCompared(rank=0, wrong=True, right_behind="head"),
            "what lies behind `head` were right",
        ),
        (BackwardCompared(rank=0), "in the backward pass or in a reduction"),
    ],
)
def test_behind_right_losses_the_backward_pass_is_told(
    backward: BackwardCompared, words: str
) -> None:
    loss = LossCompared(rank=0, here=1.0, there=1.0, relation=MEAN)
    found = told(SAME, loss, backward)
    assert "the mean of the ranks' losses is its loss" in found
    assert words in found


@pytest.mark.parametrize(
    ("relation", "factor", "words"),
    [
        (SUM, 0.5, "are to be added up, and they are averaged"),
        (MEAN, 2.0, "are to be averaged, and they are added up"),
        (MEAN, 0.5, "in the backward pass or in a reduction"),
    ],
)
def test_losses_tell_whether_gradients_are_to_be_averaged(
    relation: str, factor: float, words: str
) -> None:
    loss = LossCompared(rank=0, here=1.0, there=2.0, relation=relation)
    run = Run.of_events({0: [SAME, loss], 1: [LossCompared(rank=1, relation=relation)]})
    departed = Departed(rank=0, name="w", kind=TIMES, factor=factor)
    assert words in ways_in_words(run, [departed])


def test_weights_that_depart_behind_right_gradients_are_told_so() -> None:
    weights = Departed(rank=0, name="w", what=WEIGHTS, step=3)
    words = ways_in_words(run_of(SAME), [weights])
    assert words.startswith("All gradients of step 2 were the reference's")


def lines_told(*events: ForwardCompared | LossCompared | BackwardCompared) -> Any:
    located = lines_at_fault(run_of(*events), [GRADIENT])
    return [(one.place.line, one.remark) for one in located]


def test_lines_between_what_is_right_and_what_is_not_are_told() -> None:
    line = step_text(LINE)
    parted = ForwardCompared(rank=0, parted=True, module="m", lines=(line,))
    other = LossCompared(rank=0, relation=OTHER, lines=(line,))
    mean = LossCompared(rank=0, relation=MEAN, lines=(line,))
    right = BackwardCompared(rank=0, right=True, lines=(line,))
    wrong = BackwardCompared(rank=0, wrong=True, lines=(line,))
    assert lines_told(parted, other) == [(9, "computes what parts")]
    assert lines_told(SAME, other, right) == [(9, "computes the loss")]
    told = [(9, "works on gradients before the step")]
    assert lines_told(SAME, mean, right) == told
    assert lines_told(SAME, mean, wrong) == []


@pytest.mark.parametrize(
    ("at", "culprits"), [((None, 3), (1,)), ((5, 3), (1,)), ((3, 3), ())]
)
def test_ranks_whose_forward_pass_parts_first_are_at_fault(
    at: tuple[int | None, ...], culprits: tuple[int, ...]
) -> None:
    run = run_of(
        *(
            ForwardCompared(rank=rank, modules=9, parted=one is not None, at=one or 0)
            for rank, one in enumerate(at)
        )
    )
    departed = [Departed(rank=rank, name="w") for rank in (0, 1)]
    assert ranks_at_fault(run, departed) == culprits


def test_ranks_whose_tensors_depart_are_at_fault() -> None:
    departed = Departed(rank=1, name="w")
    assert ranks_at_fault(run_of(), [departed]) == (1,)


def test_where_nothing_was_seen_nothing_is_said() -> None:
    assert told() == ""
    assert told(SAME) == (
        "In the forward pass all 3 modules that were compared give the same."
    )
