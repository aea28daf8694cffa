"""How much is left out: nothing too early, the same for all, and no remainder lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.probes.data.agreement import Begun
from distdoctor.probes.data.shortening_pace import (
    FULL_SHARE,
    SURE_SHARE,
    TAIL,
    PassProgress,
    TimeBudget,
    left_out,
    next_gate,
)

COURSE = PassProgress(given=8, skipped=0, ends=0, batch_s=0.1, period=1, trains=True)
BOTH = {0: Begun(1000, 0), 1: Begun(1000, 0)}
LATE = 0.9


def test_the_window_knows_what_is_spent_and_what_is_left() -> None:
    window = TimeBudget(0, 20_000_000_000, 120_000_000_000)
    assert window.spent(70_000_000_000) == 0.5
    assert window.left_s(20_000_000_000) == 90.0
    assert window.left_s(119_000_000_000) == 0.0


def test_a_slow_start_foretells_a_slow_end() -> None:
    window = TimeBudget(0, 60_000_000_000, 120_000_000_000)
    assert window.left_s(60_000_000_000) == 36.0


def test_nothing_is_left_out_before_its_time() -> None:
    assert left_out(COURSE, BOTH, 2, FULL_SHARE - 0.01, 40.0) == 0
    assert left_out(COURSE, BOTH, 2, FULL_SHARE, 40.0) > 0


def test_it_is_left_out_earlier_where_it_is_plain_that_all_will_not_fit() -> None:
    known = replace(COURSE, rounds=9)
    assert left_out(known, BOTH, 2, SURE_SHARE - 0.01, 60.0) == 0
    assert left_out(known, BOTH, 2, SURE_SHARE, 60.0) > 0


def test_a_job_that_fits_is_played_in_full_however_late() -> None:
    """Two passes of 100 s each are to come, and there are 310 s."""
    fitting = replace(COURSE, rounds=2)
    assert left_out(fitting, BOTH, 2, LATE, 310.0) == 0
    assert left_out(fitting, BOTH, 2, LATE, 290.0) > 0
    assert left_out(replace(fitting, cycle_s=120.0), BOTH, 2, LATE, 310.0) > 0


def test_unless_all_ranks_have_begun_nothing_is_left_out() -> None:
    assert left_out(COURSE, {0: Begun(1000, 0)}, 2, LATE, 10.0) == 0


def test_ranks_whose_length_is_known_to_some_only_are_left_alone() -> None:
    mixed = {0: Begun(1000, 0), 1: Begun(None, 0)}
    assert left_out(COURSE, mixed, 2, LATE, 10.0) == 0


def test_training_waits_for_its_first_steps_to_learn_their_period() -> None:
    unknown = replace(COURSE, period=0)
    assert left_out(unknown, BOTH, 2, LATE, 10.0) == 0
    assert left_out(replace(unknown, trains=False), BOTH, 2, LATE, 10.0) > 0
    assert left_out(replace(unknown, given=16), BOTH, 2, LATE, 10.0) > 0


def test_a_short_rest_is_played() -> None:
    assert left_out(replace(COURSE, given=998), BOTH, 2, LATE, 20.0) == 0


def test_a_shortened_pass_is_shortened_again_only_if_that_is_worth_it() -> None:
    shortened = replace(COURSE, skipped=900, rounds=9)
    assert left_out(shortened, BOTH, 2, LATE, 1000.0) == 0
    assert left_out(shortened, BOTH, 2, LATE, 20.0) > 0


def test_loaders_without_a_length_end_where_they_stand_after_whole_steps() -> None:
    streams = {0: Begun(None, 0), 1: Begun(None, 0)}
    assert left_out(COURSE, streams, 2, FULL_SHARE - 0.01, 10.0) == 0
    assert left_out(replace(COURSE, period=3), streams, 2, LATE, 10.0) == 9
    assert left_out(replace(COURSE, rounds=3), streams, 2, LATE, 10.0) == 8
    ended = replace(COURSE, given=2, ends=8)
    assert left_out(replace(ended, batch_s=0.001), streams, 2, LATE, 10.0) == 0
    assert left_out(ended, streams, 2, LATE, 10.0) == 2


def test_what_workers_have_loaded_ahead_is_given() -> None:
    ahead = {0: Begun(1000, 0), 1: Begun(1000, 64)}
    skipped = left_out(COURSE, ahead, 2, LATE, 1.0)
    assert 1000 - skipped == 8 + 64 + TAIL


def test_much_time_keeps_many_remainders() -> None:
    assert left_out(COURSE, BOTH, 2, LATE, 10_000.0) % 240 == 0


lengths = st.integers(8, 100_000)


@given(
    shortest=lengths,
    more=st.lists(st.integers(0, 50), min_size=1, max_size=7),
    period=st.integers(1, 40),
    given_=st.integers(2, 300),
    batch_ms=st.integers(1, 10_000),
    left_s=st.integers(0, 1000),
    rounds=st.none() | st.integers(0, 1000),
)
def test_uneven_lengths_stay_as_uneven_and_remainders_stay(
    shortest: int,
    more: list[int],
    period: int,
    given_: int,
    batch_ms: int,
    left_s: int,
    rounds: int | None,
) -> None:
    begun = {n: Begun(shortest + extra, 0) for n, extra in enumerate([0, *more])}
    course = replace(
        COURSE, given=given_, batch_s=batch_ms / 1000, period=period, rounds=rounds
    )
    skipped = left_out(course, begun, len(begun), LATE, left_s)
    if skipped:
        assert skipped % period == 0
        assert shortest - skipped >= given_ + TAIL


@pytest.mark.parametrize("first", [0, 1, 2, 5, 8, 100, 12_345])
def test_gates_lie_ahead_and_never_far(first: int) -> None:
    gate = next_gate(first)
    assert first < gate <= max(8, first * 1.25 + 8)


def test_a_million_batches_have_few_gates() -> None:
    gates = [2]
    while gates[-1] < 1_000_000:
        gates.append(next_gate(gates[-1]))
    assert len(gates) < 70
    assert gates[:6] == [2, 4, 8, 16, 24, 32]
