"""Where settings of optimizers come from that are not the same on all ranks."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.optimizer_step.unequal_hyperparameters import (
    differing,
    unlike_ways,
)
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place


def drawing(step: int) -> str:
    rates = ["0.1", "0.1", "0.2", "0.1"]
    return "\n".join(
        f"rank {rank} | wrap=ddp:w  "
        f"hyperparameters(shared,step={step},names=0.lr,values={rate})@t.py:8"
        for rank, rate in enumerate(rates)
    )


def lines(source: str, step: int = 1) -> list[int]:
    text = dedent(source).strip() + "\n"
    made = [n for n, one in enumerate(text.splitlines(), start=1) if "SGD(" in one]
    run = replace(sketch(drawing(step)), sources={"t.py": text})
    (one,) = differing(run)
    found = unlike_ways(run, one, Place("t.py", made[0]), "lr", 1)
    return [place.line for place in found]


TABLE = """
COMMON = {"lr": 1.0, "seed": 1}
HOSTS = [
    {"lr": 0.1},
    {"lr": 0.1},
    {"lr": 0.2},
    {"lr": 0.1},
]
def settings(rank):
    return {**COMMON, **HOSTS[rank]}
s = settings(dist.get_rank())
opt = SGD(model.parameters(), lr=s["lr"])
"""


def test_the_entry_of_the_rank_at_fault_is_told() -> None:
    assert lines(TABLE) == [5]
    assert lines(TABLE, step=7) == [5]


def test_what_each_rank_asks_its_machine_for_is_told() -> None:
    source = """
    rate = float(os.environ["LR"])
    opt = SGD(model.parameters(), rate)
    """
    assert lines(source) == [1]


def test_what_ranks_began_alike_with_does_not_part_them() -> None:
    source = """
    rate = float(os.environ["LR"])
    opt = SGD(model.parameters(), rate)
    """
    assert lines(source, step=7) == []


@pytest.mark.parametrize("value", ["0.1", "0.1 * 4", "0.1 * dist.get_world_size()"])
def test_what_all_ranks_have_explains_no_difference(value: str) -> None:
    assert lines(f"rate = {value}\nopt = SGD(model.parameters(), rate)") == []
    assert lines(f"def f(m, lr={value}):\n    SGD(m, lr)\nf(m)") == []


def test_what_nobody_can_follow_is_not_told() -> None:
    assert lines("opt = SGD(model.parameters(), lr=cfg.lr)") == []
    assert lines("opt = SGD(model.parameters(), **read())") == []


def of_two(source: str, step: int = 1) -> tuple[int, ...]:
    """Who is blamed of two ranks with unlike rates."""
    text = dedent(source).strip() + "\n"
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "SGD(" in one)
    drawn = "\n".join(
        f"rank {rank} | wrap=ddp:w  holds(kind=SGD,names=w)@t.py:{line}  "
        f"hyperparameters(shared,kind=SGD,step={step},names=0.lr,values={rate})@t.py:8"
        for rank, rate in enumerate(["0.1", "0.2"])
    )
    (one,) = differing(replace(sketch(drawn), sources={"t.py": text}))
    assert one.by_source is bool(one.culprits)
    return one.culprits


@pytest.mark.parametrize(
    ("rate", "culprits"),
    [
        ("args.lr * (1 + (rank == 1))", (1,)),
        ("0.1 if rank == 0 else 0.2", (0,)),
        ("args.lr if rank != 1 else 0.2", (1,)),
        ("HOSTS[rank]", ()),  # of a table one entry is as good as another
        ("0.1 * (rank + 1)", ()),
        ("args.lr", ()),
    ],
)
def test_of_two_the_one_is_blamed_whom_the_source_gives_its_own(
    rate: str, culprits: tuple[int, ...]
) -> None:
    source = f"""
    HOSTS = [0.1, 0.2]
    rank = dist.get_rank()
    rate = {rate}
    opt = SGD(model.parameters(), rate)
    """
    assert of_two(source) == culprits


def test_what_ranks_began_alike_with_singles_out_nobody() -> None:
    source = """
    rank = dist.get_rank()
    opt = SGD(model.parameters(), lr=0.2 if rank == 1 else 0.1)
    """
    assert of_two(source) == (1,)
    assert of_two(source, step=3) == ()


def test_an_assignment_under_a_test_of_the_rank_is_its_own() -> None:
    source = """
    rate = 0.1
    if dist.get_rank() == 1:
        rate = 0.2
    opt = SGD(model.parameters(), lr=rate)
    """
    assert of_two(source) == (1,)


def test_the_optimizer_is_meant_that_steps_at_the_line_of_the_settings() -> None:
    """One that was made before may make its first step after it."""
    source = dedent("""
    first = SGD(model.parameters(), lr=0.5)
    second = SGD(model.parameters(), lr=0.1 * (1 + (dist.get_rank() == 1)))
    """)
    drawn = "\n".join(
        f"rank {rank} | wrap=ddp:w  holds(kind=SGD,names=w)@t.py:2  "
        "holds(kind=SGD,names=w,optimizer=1)@t.py:3  "
        f"hyperparameters(shared,kind=SGD,step=1,names=0.lr,values={rate})@t.py:9  "
        "gradients(optimizer=1,step=1)@t.py:9  gradients(step=1)@t.py:8"
        for rank, rate in enumerate(["0.1", "0.2"])
    )
    (one,) = differing(replace(sketch(drawn), sources={"t.py": source}))
    assert one.culprits == (1,)
