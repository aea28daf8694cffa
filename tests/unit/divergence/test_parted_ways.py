"""Ranks that are apart long before it shows, by the ways that led to their calls."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run

SOURCE = """
def learn(batch):
    dist.all_reduce(batch)
def easy(share):
    for batch in share:
        learn(batch)
def hard(share):
    for batch in share:
        learn(batch)
def main(share):
    easy(share)
    hard(share)
    dist.barrier()
"""

EASY, HARD = (
    "all_reduce(4)@t.py:2<t.py:5<t.py:10",
    "all_reduce(4)@t.py:2<t.py:8<t.py:11",
)


def the_run(rows: list[str], source: str = SOURCE) -> Run:
    drawn = "\n".join(f"rank {rank} | {row}" for rank, row in enumerate(rows))
    run = sketch(drawn)
    return replace(run, sources={"t.py": dedent(source).strip() + "\n"})


def divergence_of(rows: list[str], source: str = SOURCE) -> Divergence:
    (divergence,) = divergences(the_run(rows, source))
    return divergence


def lines(divergence: Divergence) -> list[int]:
    return [one.place.line for one in divergence.elsewhere]


def rounds(easy: int, hard: int, end: str) -> str:
    return "  ".join([*[EASY] * easy, *[HARD] * hard, end])


USUAL = rounds(3, 4, f"{HARD}...")


@pytest.mark.parametrize(
    ("rows", "culprits"),
    [
        ([rounds(2, 5, "barrier@t.py:12!"), USUAL, USUAL], (0,)),
        ([USUAL, USUAL, rounds(2, 5, "barrier@t.py:12!")], (2,)),
        ([USUAL, rounds(2, 5, "barrier@t.py:12!")], (1,)),
        ([rounds(1, 6, "barrier@t.py:12!"), USUAL, USUAL], (0,)),
    ],
)
def test_the_loop_that_was_left_is_told(rows: list[str], culprits: tuple[int]) -> None:
    found = divergence_of(rows)
    assert (found.why, found.culprits) == (Cause.SKIPPED, culprits)
    assert lines(found)[0] == 4
    assert "Calls that look alike have met since" in sentence(found)


def test_one_more_round_is_told() -> None:
    others = rounds(3, 5, "barrier@t.py:12!")
    found = divergence_of([rounds(4, 4, f"{HARD}..."), others, others])
    assert (found.why, found.culprits, lines(found)[0]) == (Cause.UNEVEN, (0,), 4)


def test_of_two_the_head_of_the_loop_decides() -> None:
    source = SOURCE.replace("batch in share", "batch in share[: 3 + (rank == 1)]", 1)
    source = source.replace(
        "def easy(share):", "def easy(share, rank=dist.get_rank()):"
    )
    rows = [rounds(3, 5, "barrier@t.py:12!"), rounds(4, 4, f"{HARD}...")]
    assert divergence_of(rows, source).culprits == (1,)
    assert divergence_of(rows).culprits == (0,)  # who is behind the loop has left it


def test_a_branch_by_rank_before_it_shows_is_told() -> None:
    source = """
    def mean(x):
        dist.all_reduce(x)
    def main(rank):
        for step in range(3):
            mean(loss)
            if rank == 1:
                mean(norm)
        dist.barrier()
    main(dist.get_rank())
    """
    usual, extra = ("all_reduce(4)@t.py:2<t.py:" + n for n in ("5<t.py:9", "7<t.py:9"))
    rows = [
        f"{usual}  {usual}  {usual}  barrier@t.py:8<t.py:9!",
        f"{usual}  {extra}  {usual}  {extra}...",
    ]
    found = divergence_of(rows, source)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert lines(found)[0] == 6


def test_what_one_rank_left_out_in_no_loop_is_told_where_it_was() -> None:
    source = """
    def mean(x):
        dist.all_reduce(x)
    def main(x):
        mean(x)
        if x.isfinite():
            mean(x)
        mean(x)
        mean(x)
        dist.barrier()
    """
    calls = [f"all_reduce(4)@t.py:2<t.py:{n}" for n in (4, 6, 7, 8)]
    usual = "  ".join([*calls[:3], f"{calls[3]}..."])
    short = "  ".join([calls[0], *calls[2:], "barrier@t.py:9!"])
    found = divergence_of([usual, short, usual], source)
    assert (found.why, found.culprits, lines(found)) == (Cause.SKIPPED, (1,), [6])


def test_branches_that_fit_each_other_are_no_parting() -> None:
    source = """
    def mean(x):
        dist.all_reduce(x)
    def main(x):
        mean(x)
        if x.isfinite():
            mean(x)
        else:
            mean(-x)
        mean(x)
        if x.isfinite():
            dist.barrier()
        mean(x)
    """
    calls = {n: f"all_reduce(4)@t.py:2<t.py:{n}" for n in (4, 6, 8, 9, 12)}
    end = f"{calls[9]}  barrier@t.py:11!"
    usual = f"{calls[4]}  {calls[6]}  {end}"
    other = f"{calls[4]}  {calls[8]}  {calls[9]}  {calls[12]}..."
    assert 6 not in lines(divergence_of([usual, other, usual], source))
    assert "look alike" not in sentence(divergence_of([usual, other, usual], source))


def test_without_callers_nothing_is_told() -> None:
    rows = [rounds(2, 5, "barrier@t.py:12!"), USUAL, USUAL]
    bare = [
        row.replace("<t.py:5<t.py:10", "").replace("<t.py:8<t.py:11", "")
        for row in rows
    ]
    assert "look alike" not in sentence(divergence_of(bare))


def test_ranks_whose_calls_one_shadows_for_a_while_are_together_behind() -> None:
    source = """
    def learn(batch):
        dist.all_reduce(batch)
    def joined(model, share):
        with Join([model]):
            for batch in share:
                learn(batch)
    def main(share):
        joined(model, share)
        joined(model, share)
        dist.all_reduce(total)
    """
    learn, shadow = (f"all_reduce(4)@t.py:{n}<t.py:{{0}}" for n in ("2<t.py:6", "4"))
    calls = [[learn] * 4, [learn] * 2 + [shadow] * 2]
    rows = [
        "  ".join(one.format(line) for line in (8, 9) for one in [*of, shadow])
        for of in calls
    ]
    ends = ("all_reduce(1)@t.py:10!", "all_reduce(1:int8)@t.py:10!")
    found = divergence_of(
        [f"{row}  {end}" for row, end in zip(rows, ends, strict=True)], source
    )
    assert found.why is Cause.DTYPE
    assert "look alike" not in sentence(found)
