"""Gradients that ranks have averaged, and multiplied by numbers of their own."""

from dataclasses import replace

import pytest

from distdoctor.analysis.gradients.multiplied_averages import multiples
from distdoctor.analysis.gradients.used_gradients import chapters
from distdoctor.analysis.optimizer_step.step_lines import norms_called_before
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Sick
from distdoctor.model.run import Run

Pair = tuple[float, float]


def rank(own: int, looks: list[tuple[Pair, Pair, Pair]], sizes: str) -> str:
    """A rank that drifts; by step what it had, what it used, and the norms of that."""
    steps = [
        f"gradients(step={n},prints={own}{n}0+{own}{n}1,weights={own}{n}8+{own}{n}9,"
        f"passes=1,moved=8,probed=0-1,own={had[0]}+{had[1]},used={used[0]}+{used[1]},"
        f"norms={norms[0]}+{norms[1]})"
        for n, (had, used, norms) in enumerate(looks, start=2)
    ]
    first = f"gradients(step=1,prints={own}2+{own}3,weights=7+8,passes=1,moved=8)"
    return "  ".join([f"holds(names=a+b,sizes={sizes},divided)", first, *steps])


def drawn(
    *, factors: Pair = (0.5, 4.0), own: bool = False, sizes: str = "8+8", b: float = 1
) -> Run:
    """Two ranks; the second multiplies what is averaged, or its own, by its factors."""
    p, q = factors
    ranks: list[list[tuple[Pair, Pair, Pair]]] = [
        [((1, 5), (3, 1), (6, 4)), ((4, 2), (2, -1), (4, 2))],
        [
            ((5, -3), (3 * p, q), (6 * p, 4 * q * b)),
            ((3, 5), (2 * p, -q), (4 * p, 2 * q * b)),
        ],
    ]
    if own:
        for looks in ranks:
            looks[:] = [((3, 1), used, norms) for _, used, norms in looks[:1] * 2]
    rows = [rank(n, looks, sizes) for n, looks in enumerate(ranks, start=1)]
    return sketch("\n".join(f"rank {n} | {row}" for n, row in enumerate(rows)))


def codes(run: Run) -> list[str]:
    return [c.code for c in every_check() if isinstance(verdict(run, c), Sick)]


def test_what_was_averaged_and_multiplied_is_one_gradient() -> None:
    run = drawn()
    found = multiples(chapters(run)[0])
    assert (set(found.same), set(found.others)) == ({0, 1}, set())
    assert codes(run) == []  # nothing says that it was not averaged


def test_another_gradient_is_no_multiple() -> None:
    run = drawn(b=1.1)
    found = multiples(chapters(run)[0])
    assert (set(found.same), set(found.others)) == ({0}, {1})
    (check,) = [one for one in every_check() if one.code == "DD404"]
    judgement = verdict(run, check)
    assert isinstance(judgement, Sick)
    assert [one.details["parameters"] for one in judgement.findings] == [["b"]]


@pytest.mark.parametrize(
    "run",
    [
        drawn(factors=(-0.5, -4.0), b=1.2),
        drawn(factors=(3.0, 3.0), own=True),
        drawn(sizes="3+1"),
    ],
    ids=["opposite", "own", "few numbers"],
)
def test_what_may_be_each_ranks_own_is_said_not_to_be_averaged(run: Run) -> None:
    assert not multiples(chapters(run)[0]).same
    assert codes(run) == ["DD404"]


SOURCE = """
def ratios(model):
    return [one.norm() / one.grad.norm() for one in model.parameters()]


def length(model):
    return sum(one.norm() for one in model.parameters())


def main(model, first):
    print(length(model))
    if first:
        found = ratios(model)
    else:
        found = ratios(model)
        average(model)
    average(model)
    ratios(model)
"""


def test_lines_that_call_for_norms_of_gradients() -> None:
    run = replace(sketch("rank 0 | exit=0"), sources={"t.py": SOURCE})
    assert [
        [place.line for place in norms_called_before(run, Place("t.py", line, "main"))]
        for line in (11, 16, 17)
    ] == [[], [15], [13, 15]]
    assert norms_called_before(run, Place("other.py", 3, "main")) == []
