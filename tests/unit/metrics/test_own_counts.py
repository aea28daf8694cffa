"""Sums over all ranks by the count of one: what is an error, and what excuses it."""

from dataclasses import replace

import pytest

from distdoctor.analysis.metrics.own_counts import own_counts
from distdoctor.model.drawing import sketch

LOSSES = """
def evaluate(model, loader):
    total, n = torch.zeros(()), 0
    for x, y in loader:
        total += {added}
        n += len(y)
    {before}
    dist.all_reduce({given})
    return total / n
"""

RANK = (
    "rank {rank} | wrap=ddp:a  read(samples={samples},contents={contents},batch=4)"
    "@t.py:4 all_reduce(-)@t.py:8 contributed(passes=0,values={value})@t.py:8 "
    "added_up(values={value},loss=1.0,losses=10)@t.py:8 {shown} leave\n"
)


def evaluation(shown: str, values: tuple[float, float] = (8.2, 7.9)) -> str:
    """Of eight samples on each of two ranks."""
    first = {"samples": "0-7", "contents": "1-8", "value": values[0], "shown": shown}
    last = {"samples": "8-15", "contents": "21-28", "value": values[1], "shown": ""}
    return RANK.format(rank=0, **first) + RANK.format(rank=1, **last)


@pytest.mark.parametrize(
    ("added", "before", "given", "sure"),
    [
        ("loss(model(x / 255), y)", "pass", "total", True),
        ("loss(model(x), y).item() * len(y)", "pass", "total", True),
        ("loss(model(x), y)", "total /= world", "total", False),
        ("loss(model(x), y)", "total.div_(world)", "total", False),
        ("loss(model(x), y) / world", "pass", "total", False),
        ("loss(model(x), y)", "pass", "model", False),
    ],
)
def test_a_sum_that_may_be_divided_before_is_no_error(
    added: str, before: str, given: str, sure: bool
) -> None:
    source = LOSSES.format(added=added, before=before, given=given)
    shown = "shown(numbers=2.0125,decimals=4,labels=loss)@t.py:13"
    run = replace(sketch(evaluation(shown)), sources={"t.py": source})
    assert [one.sure for one in own_counts(run)] == [sure]


@pytest.mark.parametrize(
    "shown",
    [
        "shown(numbers=2.0125,decimals=4,labels=total)@t.py:13",
        "shown(numbers=1.0063,decimals=4,labels=loss)@t.py:13",
        "shown(numbers=2.0125+1.0063,decimals=4+4,labels=loss+loss)@t.py:13",
        "shown(numbers=2.0125,decimals=4,labels=-)@t.py:13",
        "",
    ],
    ids=["a total", "by all", "both", "nobody knows what", "nothing"],
)
def test_what_is_told_otherwise_is_not_accused(shown: str) -> None:
    assert not list(own_counts(sketch(evaluation(shown))))


def test_few_hits_may_have_been_halved_before() -> None:
    shown = "shown(numbers=.625,decimals=3,labels=accuracy)@t.py:13"
    assert not list(own_counts(sketch(evaluation(shown, (3.0, 2.0)))))
    shown = "shown(numbers=1.125,decimals=3,labels=accuracy)@t.py:13"
    (found,) = own_counts(sketch(evaluation(shown, (5.0, 4.0))))
    assert (found.sure, found.mine, found.counts) == (True, 8, (8, 8))
