"""Which ranks drop the same elements; what is told at first sight is in the manuals."""

from distdoctor.analysis.rng.dropped_elements import copies_apart, parts_alike
from distdoctor.model.drawing import sketch

ALL = 2**64 - 1
EVEN = sum(1 << at for at in range(0, 64, 2))


def rank(number: int, *words: str) -> str:
    return f"rank {number} | all_gather(32)  within  " + "  ".join(words)


def dropped(
    call: int, given: int, left: int, kept: int = EVEN, known: int = ALL
) -> str:
    fields = f"call={call},elements=64,given={given},left={left}"
    return f"dropped({fields},known={known},kept={kept})@t.py:{call + 1}"


def test_calls_at_one_line_are_told_once() -> None:
    run = sketch(
        "\n".join(
            (
                rank(
                    0, dropped(0, 7, 8), dropped(0, 7, 8).replace("call", "step=1,call")
                ),
                rank(
                    1, dropped(0, 7, 9), dropped(0, 7, 9).replace("call", "step=1,call")
                ),
            )
        )
    )
    assert [(one.ranks, one.calls) for one in copies_apart(run)] == [((0, 1), 2)]


def test_ranks_that_call_otherwise_are_not_compared() -> None:
    run = sketch(f"{rank(0, dropped(0, 7, 8))}\n{rank(1, dropped(1, 7, 9))}")
    assert not copies_apart(run)
    assert not parts_alike(run)


def test_one_call_with_other_masks_clears_a_line() -> None:
    first, second = dropped(0, 6, 8), dropped(0, 6, 8).replace("call", "step=1,call")
    other = dropped(0, 7, 9, EVEN ^ 1).replace("call", "step=1,call")
    run = sketch(f"{rank(0, first, second)}\n{rank(1, dropped(0, 7, 9), other)}")
    assert not parts_alike(run)


def test_masks_that_drop_next_to_nothing_are_alike_by_chance() -> None:
    masks = {"kept": ALL ^ 1}
    run = sketch(
        f"{rank(0, dropped(0, 6, 8, **masks))}\n{rank(1, dropped(0, 7, 9, **masks))}"
    )
    assert not parts_alike(run)


def test_zeros_before_are_left_out_of_the_comparison() -> None:
    here, there = dropped(0, 6, 8), dropped(0, 7, 9, EVEN & ~0b1100, ALL & ~0b1100)
    run = sketch(f"{rank(0, here)}\n{rank(1, there)}")
    assert [one.ranks for one in parts_alike(run)] == [(0, 1)]


def test_only_the_ranks_that_share_a_mask_are_told() -> None:
    other = dropped(0, 5, 4, ALL & ~EVEN)
    lines = rank(0, dropped(0, 6, 8)), rank(1, other), rank(2, dropped(0, 7, 9))
    assert [one.ranks for one in parts_alike(sketch("\n".join(lines)))] == [(0, 2)]
