"""Many small collectives in each step: what counts as many, small, and one line's."""

import pytest

from distdoctor.analysis.collectives.small_calls import SmallCalls, small_calls
from distdoctor.model.drawing import sketch


def found(words: str, wrapped: str = "") -> list[SmallCalls]:
    rank = f"{wrapped} rate_course(steps=6) {words} exit=0"
    return small_calls(sketch(f"rank 0 | {rank}\nrank 1 | {rank}"))


def test_a_loop_over_many_parameters_is_told_with_its_figures() -> None:
    (one,) = found("all_reduce(8x8)@t.py:7+1ms*174")
    assert (one.ranks, one.calls, one.buckets) == ((0, 1), 29, False)
    assert (one.bytes, one.usual) == (29 * 256, 256)


@pytest.mark.parametrize(
    "words",
    [
        "all_reduce(64)@t.py:7+1ms*140",
        "all_reduce(64)@t.py:7&+1ms*174",
        "all_reduce(64)@t.py:7+1ms*87 all_reduce(64)@t.py:8+1ms*87",
        "all_reduce(64)@t.py:7+1ms*150 all_reduce(20000)@t.py:7+1ms*24",
        "all_gather(64)@t.py:7+1ms*174",
        "all_reduce(64)+1ms*174",
        "all_reduce(64)@t.py:7+1ms*174 gradients(passes=4)",
    ],
    ids=["few", "handles", "two lines", "large", "other", "no line", "four passes"],
)
def test_what_is_not_many_and_small_is_left_alone(words: str) -> None:
    assert found(words) == []


BUCKETS = "all_reduce(400,by=backward)@t.py:9&+1ms*120"


def test_tiny_buckets_are_told_of_each_model() -> None:
    (one,) = found(BUCKETS, "wrap=ddp:w@t.py:3")
    assert (one.calls, one.bytes, one.buckets) == (20, 32_000, True)
    assert found(BUCKETS, "wrap=ddp:w@t.py:3 wrap=ddp:v@t.py:4") == []
    assert found(BUCKETS) == []


def test_what_has_a_shape_is_no_bucket() -> None:
    hooks = BUCKETS.replace("(400,", "(20x20,")
    assert found(hooks, "wrap=ddp:w@t.py:3") == []


def test_half_precision_is_half_as_long() -> None:
    (one,) = found("all_reduce(64:bfloat16)@t.py:7+1ms*174")
    assert one.usual == 128


def test_a_few_steps_tell_nothing() -> None:
    run = sketch("rank 0 | rate_course(steps=2) all_reduce(64)@t.py:7+1ms*200 exit=0")
    assert small_calls(run) == []
