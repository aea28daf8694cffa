"""Sums of ranks' averages that are told as they are: what is seen, and concluded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from distdoctor.analysis.metrics.undivided_sums import UndividedSum, undivided
from distdoctor.analysis.metrics.unequal_fractions import UnequalFractions, uneven
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.drawing import sketch
from distdoctor.model.observations.metrics import AddedUp, Shown
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.metrics.small_values import few_values
from distdoctor.probes.recorder import RECORDER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a rank keeps its journal."""
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    monkeypatch.setattr(RECORDER, "writer", JournalWriter(tmp_path, 0, 1, 8 << 20))
    monkeypatch.setattr(RECORDER, "_notes", None)
    FIGURES.reset()
    yield tmp_path
    FIGURES.reset()


def sums_in(folder: Path) -> tuple[list[AddedUp], list[Shown]]:
    run = assemble(folder, Manifest(distdoctor="", launch=[], directory="/"))
    assert not run.partial
    return run.of(AddedUp, 0), run.of(Shown, 0)


def loss(size: float) -> torch.Tensor:
    """Of a batch, of so much."""
    root = torch.full((4,), size**0.5, requires_grad=True)
    return mse_loss(root, torch.zeros(4))


def test_losses_are_counted_from_one_sum_to_the_next(folder: Path) -> None:
    for size in (1.0, 3.0):
        FIGURES.begun(loss(size), None)
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    FIGURES.summed(1, [torch.tensor(0.5)], "t.py:10:f")
    FIGURES.begun(loss(4.0), torch.ones(()))
    FIGURES.summed(1, [torch.tensor(4.0)], "t.py:9:f")
    found, _ = sums_in(folder)
    assert [one.values for one in found] == [(2.0,), (0.5,), (4.0,)]
    assert [one.losses for one in found] == [2, 2, 1]
    assert [one.loss for one in found] == pytest.approx([2, 2, 4])


@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_losses_that_were_divided_are_not_taken_for_means(
    folder: Path, factor: float
) -> None:
    FIGURES.begun(loss(2.0) * factor, None)
    FIGURES.summed(1, [torch.tensor(2.0 * factor)], "t.py:9:f")
    FIGURES.begun(loss(2.0), None)
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    found, _ = sums_in(folder)
    assert [one.losses for one in found] == [0, 0]


def test_a_loss_that_is_scaled_by_its_gradient_is_no_mean(folder: Path) -> None:
    FIGURES.begun(loss(2.0), torch.tensor(0.5))
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    found, _ = sums_in(folder)
    assert [one.losses for one in found] == [0]


@pytest.mark.parametrize("size", [float("inf"), float("nan")])
def test_a_loss_that_overflows_is_no_mean(folder: Path, size: float) -> None:
    FIGURES.begun(loss(size), None)
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    FIGURES.begun(loss(2.0), None)
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    found, _ = sums_in(folder)
    assert [one.losses for one in found] == [0, 1]


def test_a_number_beyond_all_bounds_is_left_out(folder: Path) -> None:
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    FIGURES.write("loss 1.5e999, then loss 2.5\n")
    _, found = sums_in(folder)
    assert [one.numbers for one in found] == [(2.5,)]


def test_a_line_of_text_is_told_with_what_its_numbers_are(folder: Path) -> None:
    FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    for piece in ("epoch 3 ", "avg loss: 1.250", " acc 9.5e-1 in 3.5 s", "\n"):
        FIGURES.write(piece)
    FIGURES.write("total loss 2.5000\n")
    FIGURES.write("7 of 9\n")
    _, found = sums_in(folder)
    assert [one.numbers for one in found] == [(1.25, 0.95, 3.5), (2.5,)]
    assert [one.decimals for one in found] == [(3, 2, 1), (4,)]
    assert [one.labels for one in found] == [
        ("average-loss", "accuracy", "-"),
        ("total",),
    ]


def test_what_one_line_gives_again_and_again_is_told_some_times(folder: Path) -> None:
    for _ in range(50):
        FIGURES.summed(1, [torch.tensor(2.0)], "t.py:9:f")
    found, _ = sums_in(folder)
    assert len(found) == 12


# --- conclusions ---


def added(
    first: str,
    second: str,
    shown: str,
    op: str = "all_reduce(-)",
    losses: tuple[float, float] = (1.0, 1.5),
) -> list[UndividedSum]:
    """Two ranks with losses add up numbers, and rank 0 tells some."""
    lines = (
        f"rank {rank} | wrap=ddp:a  {op}@t.py:12  "
        f"added_up(values={values},loss={losses[rank]},losses=4)@t.py:12  "
        f"{'' if rank else f'shown({shown})@t.py:13'}  leave"
        for rank, values in enumerate((first, second))
    )
    return list(undivided(sketch("\n".join(lines))))


@pytest.mark.parametrize("op", ["all_reduce(-)", "reduce(-,root=0)"])
@pytest.mark.parametrize(
    ("label", "sure"), [("average", True), ("average-loss", True), ("loss", False)]
)
def test_a_sum_of_mean_losses_is_known(op: str, label: str, *, sure: bool) -> None:
    (one,) = added("1.0", "1.5", f"numbers=2.5,decimals=4,labels={label}", op)
    assert (one.what, one.as_average, one.total) == ("loss", sure, 2.5)


@pytest.mark.parametrize(
    ("first", "second", "shown"),
    [
        ("1.0", "1.5", "numbers=2.5,decimals=4,labels=total"),
        ("1.0", "1.5", "numbers=2.5,decimals=4,labels=-"),
        ("1.0", "1.5", "numbers=1.25,decimals=4,labels=average-loss"),
        ("1.0", "1.5", "numbers=2.5,decimals=1,labels=average-loss"),  # by chance
        ("1.0", "1.5", "numbers=2.5+1.25,decimals=4+4,labels=loss+average"),  # both
        ("0.5", "0.75", "numbers=1.25,decimals=4,labels=average-loss"),  # divided
        ("9.0", "1.5", "numbers=10.5,decimals=4,labels=average-loss"),  # other ones
        ("4.0+4.0", "6.0+4.0", "numbers=1.25,decimals=4,labels=average-loss"),
    ],
)
def test_other_sums_of_losses_are_well(first: str, second: str, shown: str) -> None:
    assert not added(first, second, shown)


EVALUATION = """
class Evaluator:
    def __init__(self):
        self.loss = nn.MSELoss()
    def evaluate(self, model, loader):
        {made}
        all_reduce({given})
        average /= world
        return average
"""

LISTED = "losses = [mse_loss(model(x), x) for x, in loader]; "

APPENDED = """losses = []
        for x, y in loader:
            loss = self.loss(model(x), y)
            losses.append(loss.item())
        """

ADDED = """total = 0.0
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item()
        """


def evaluated(made: str, given: str = "average", label: str = "average-loss") -> bool:
    """Whether a sum is told that a source makes, of losses unlike those of training."""
    source = EVALUATION.format(made=made.replace("; ", "\n        "), given=given)
    line = source[: source.index("all_reduce(")].count("\n") + 1
    shown = f"shown(numbers=0.4500,decimals=4,labels={label})@t.py:99"
    lines = (
        f"rank {rank} | wrap=ddp:a  all_reduce(-)@t.py:{line}  "
        f"added_up(values={value},loss=3.0,losses=4)@t.py:{line}  "
        f"{'' if rank else shown}  leave"
        for rank, value in enumerate((0.2, 0.25))
    )
    run = replace(sketch("\n".join(lines)), sources={"t.py": source})
    return bool(list(undivided(run)))


@pytest.mark.parametrize(
    ("made", "given"),
    [
        (LISTED + "average = torch.stack(losses).mean()", "average"),
        (LISTED + "average = mean(losses)", "torch.tensor([average])"),
        (LISTED + "average = torch.tensor(sum(losses) / len(losses))", "average"),
        (APPENDED, "mean(losses)"),
        (ADDED + "average = torch.tensor(total / len(loader))", "average"),
    ],
)
def test_a_sum_of_means_that_the_source_makes_is_known(made: str, given: str) -> None:
    assert evaluated(made, given)
    assert not evaluated(made, given, "loss")
    assert not evaluated(made, given, "total")


@pytest.mark.parametrize(
    "made",
    [
        LISTED + "average = torch.stack(losses).mean() / world",
        LISTED + "average = torch.stack(losses).mean(); average /= world",
        LISTED + "average = torch.stack(losses).mean(); average.div_(world)",
        LISTED + "average = torch.stack(losses).sum() / count",
        LISTED + "average = torch.stack(losses).mean(); share(losses)",
        LISTED + "average = torch.tensor(sum(losses) / len(dataset))",
        LISTED.replace("x)", "x) / world") + "average = torch.stack(losses).mean()",
        LISTED.replace("x)", "x, reduction='sum')") + "average = mean(losses)",
        LISTED.replace("mse_loss", "part_of_loss") + "average = mean(losses)",
        APPENDED.replace("(loss", "(len(y) * loss") + "average = mean(losses)",
        ADDED + "average = torch.tensor(total / len(dataset))",
        ADDED + "total /= world; average = torch.tensor(total / len(loader))",
        "average = model(loader)",
    ],
)
def test_what_may_be_no_mean_of_the_rank_is_well(made: str) -> None:
    assert not evaluated(made)


def test_an_average_that_the_operation_makes_is_well() -> None:
    shown = "numbers=2.5,decimals=4,labels=average-loss"
    assert not added("1.0", "1.5", shown, "all_reduce(-,op=avg)")


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [("0.75", "0.625", 1.375), ("75.5", "62.0", 137.5), ("0.75", "0.625", 137.5)],
)
def test_accuracies_above_all_there_is_are_sums(
    first: str, second: str, number: float
) -> None:
    (one,) = added(first, second, f"numbers={number},decimals=3,labels=accuracy")
    assert (one.what, one.as_average) == ("accuracy", True)


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        ("12.0", "13.0", "25.0"),  # how many are right
        ("0.25", "0.5", "0.75"),  # parts of one
        ("0.75", "1.5", "2.25"),  # no fractions
    ],
)
def test_other_sums_beside_accuracies_are_well(
    first: str, second: str, number: str
) -> None:
    assert not added(first, second, f"numbers={number},decimals=3,labels=accuracy")


# --- fractions of unequal shares ---


def gave(
    shares: tuple[int, ...],
    right: Sequence[tuple[int, ...]],
    *,
    weighted: bool = False,
    digits: int = 4,
    scale: float = 1.0,
    op: str = "all_reduce(-)",
) -> list[UnequalFractions]:
    """Ranks add up fractions of their shares, and rank 0 tells the average.

    Args:
        shares: By rank, samples.
        right: By evaluation and rank, how many were right.
        weighted: By the size of the shares.
        digits: Behind the point of what is told.
        scale: Of the fractions.
        op: That adds up.
    """
    ranks: list[str] = ["wrap=ddp:a"] * len(shares)
    for some in right:
        values = [scale * n / of for n, of in zip(some, shares, strict=True)]
        mean = sum(values) / len(values)
        if weighted:
            mean = scale * sum(some) / sum(shares)
        for rank, value in enumerate(values):
            ranks[rank] += f"  {op}@t.py:12  added_up(values={value:.8g})@t.py:12"
        ranks[0] += (
            f"  shown(numbers={mean:.{digits}f},decimals={digits},labels=-)@t.py:13"
        )
    return list(
        uneven(sketch("\n".join(f"rank {n} | {one}" for n, one in enumerate(ranks))))
    )


RIGHT = [(112, 49), (116, 49), (113, 51), (115, 50)]


@pytest.mark.parametrize("op", ["all_reduce(-)", "all_reduce(-,op=avg)"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_fractions_tell_of_how_many_samples_they_are(op: str, scale: float) -> None:
    (one,) = gave((212, 88), RIGHT, op=op, scale=scale)
    assert one.counts == (212, 88)
    assert abs(one.plain - one.weighted) > 1e-3


@pytest.mark.parametrize(
    ("shares", "right"),
    [
        ((150, 150), [(101, 90), (103, 95), (104, 97)]),  # equal
        ((151, 150), [(101, 90), (103, 95), (104, 97)]),  # by one sample
        ((150, 150), [(50, 60), (60, 75), (75, 90)]),  # equal, with common divisors
        ((212, 88), [(112, 49)]),  # too little is seen
        ((212, 88), [(112, 49), (112, 49)]),  # likewise: nothing changes
        ((4, 5), [(1, 2), (3, 4), (2, 3)]),  # any number is nearly such a fraction
        ((212, 88), [(106, 44), (53, 22)]),  # no average changes by weights
    ],
)
def test_other_averages_of_fractions_are_well(
    shares: tuple[int, ...], right: Sequence[tuple[int, ...]]
) -> None:
    assert not gave(shares, right)


def test_weighted_fractions_and_coarse_figures_are_well() -> None:
    assert not gave((212, 88), RIGHT, weighted=True)
    assert not gave((212, 88), [(112, 46), (116, 48), (113, 47)], digits=2)


def test_numbers_that_are_no_fractions_are_well() -> None:
    # Losses, whose digits are of no small number.
    right = [(112, 49), (116, 49)]
    assert not gave((212, 88), right, scale=0.73914372)


def test_a_sparse_tensor_gives_no_figures() -> None:
    whole = torch.tensor([0.0, 2.5])
    assert few_values(2, [whole]) == (0.0, 2.5)
    assert few_values(2, [whole.to_sparse()]) == ()
