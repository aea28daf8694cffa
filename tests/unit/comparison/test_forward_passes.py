"""The first module that gives what the reference does not; and losses beside its."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.comparison.forward_passes import forward_compared
from distdoctor.analysis.comparison.losses import losses_compared
from distdoctor.analysis.comparison.shard_places import Cut
from distdoctor.model.events import Place
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    MEAN,
    OTHER,
    SAME,
    SUM,
    ForwardCompared,
    LossCompared,
)
from distdoctor.model.step_values import ModuleOutput, StepValues

EPS = float(np.finfo(np.float32).eps)

NAMES = ("first", "second", "third")


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WHOLE = {name: random(8, 6, seed=n) for n, name in enumerate(NAMES)}
WEIGHTS = {f"{name}.weight": random(6, 6, seed=9 + n) for n, name in enumerate(NAMES)}


def step(outputs: dict[str, Any], weights: dict[str, Any] | None = None) -> StepValues:
    told = [ModuleOutput(name, (array,), EPS) for name, array in outputs.items()]
    return StepValues(1, weights or WEIGHTS, {}, outputs=tuple(told))


def whole_cut(name: str) -> Cut:
    return Cut(name, (np.arange(6), np.arange(6)), (6, 6))


PLACES = {name: whole_cut(name) for name in WEIGHTS}


def compare(
    ranks: Sequence[dict[str, Any]],
    places: dict[str, Cut] = PLACES,
    whole: dict[str, Any] = WHOLE,
) -> list[ForwardCompared]:
    moved = step({name: array * (1 + EPS) for name, array in whole.items()})
    lines = [
        replace(one, lines=(line_of(one.name),)) if one.name else one
        for one in moved.outputs
    ]
    return [
        *forward_compared(
            {rank: step(one) for rank, one in enumerate(ranks)},
            step(whole),
            replace(moved, outputs=tuple(lines)),
            dict.fromkeys(range(len(ranks)), places),
            [tuple(range(len(ranks)))],
        )
    ]


def halves(change: Any = lambda _, array: array) -> list[dict[str, Any]]:
    return [
        {name: change(name, array)[4 * n : 4 * n + 4] for name, array in WHOLE.items()}
        for n in (0, 1)
    ]


def test_rows_of_the_reference_are_the_same() -> None:
    found = compare(halves())
    assert [(one.parted, one.modules) for one in found] == [(False, 3)] * 2


@given(order=st.permutations(range(8)), folded=st.booleans())
def test_rows_may_come_in_any_order_and_shape(order: list[int], folded: bool) -> None:
    def mixed(array: Any) -> Any:
        rows = array[order]
        return rows.reshape(2, 2, 2, 6) if folded else rows

    (found,) = compare([{name: mixed(array) for name, array in WHOLE.items()}])
    assert not found.parted


@pytest.mark.parametrize("first", NAMES)
def test_the_first_of_those_that_stay_another_is_named(first: str) -> None:
    wrong = NAMES[NAMES.index(first) :]
    before = NAMES[NAMES.index(first) - 1] if first != "first" else ""
    found = compare(halves(lambda name, array: array * 1.5 if name in wrong else array))
    assert {(one.parted, one.module, one.behind) for one in found} == {
        (True, first, before)
    }


def test_what_another_module_mends_is_no_departure() -> None:
    """As the terms that a layer gives that is cut along its input."""
    found = compare(
        halves(lambda name, array: array / 2 if name == "second" else array)
    )
    assert not any(one.parted for one in found)


def test_terms_of_a_sum_over_ranks_are_the_same() -> None:
    part = random(8, 6, seed=40)
    terms = [
        {**WHOLE, "third": part},
        {**WHOLE, "third": WHOLE["third"] - part},
    ]
    assert not any(one.parted for one in compare(terms))


def test_columns_are_found_by_the_rows_of_the_weight() -> None:
    columns = np.array([0, 1, 4])
    places = PLACES | {
        "third.weight": Cut("third.weight", (columns, np.arange(6)), (6, 6))
    }
    (same,) = compare([{**WHOLE, "third": WHOLE["third"][:, columns]}], places)
    assert not same.parted
    (other,) = compare([{**WHOLE, "third": WHOLE["third"][:, [0, 1, 5]]}], places)
    assert other.module == "third"


def test_of_rows_with_columns_that_nobody_knows_nothing_is_said() -> None:
    (found,) = compare([{**WHOLE, "third": WHOLE["third"][:, [0, 2, 5]]}])
    assert (found.parted, found.modules) == (False, 2)


def test_a_stage_is_no_module_of_the_reference() -> None:
    """Its output has the name of the model's."""
    whole = {**WHOLE, "": WHOLE["third"]}
    places = {name: PLACES[name] for name in ("first.weight", "second.weight")}
    stage = {"first": WHOLE["first"], "second": WHOLE["second"], "": WHOLE["second"]}
    (found,) = compare([stage], places, whole)
    assert (found.parted, found.modules) == (False, 2)


def test_what_is_not_finite_is_another() -> None:
    wrong = WHOLE["third"].copy()
    wrong[3, 2] = np.nan
    (found,) = compare([{**WHOLE, "third": wrong}])
    assert found.module == "third"


def line_of(name: str) -> Place:
    return Place("t.py", 1 + NAMES.index(name))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [(("second", "third"), "second"), (("first", "second", "third"), "first")],
)
def test_lines_that_compute_up_to_the_first_that_parts_are_told(
    wrong: tuple[str, ...], told: str
) -> None:
    (found, _) = compare(
        halves(lambda name, array: array * 1.5 if name in wrong else array)
    )
    assert found.lines == (step_text(line_of(told)),)


# --- losses ---


def losses(*each: tuple[float, ...], reference: float = 6.0) -> list[LossCompared]:
    def one(*told: float) -> StepValues:
        return StepValues(1, {}, {}, losses=told)

    ranks = {rank: one(*told) for rank, told in enumerate(each)}
    return [*losses_compared(ranks, one(reference), one(reference * (1 + EPS)))]


@pytest.mark.parametrize(
    ("each", "relation", "passes"),
    [
        (((6.0,), (6.0,)), SAME, 1),
        (((5.0,), (7.0,)), MEAN, 1),
        (((2.0,), (4.0,)), SUM, 1),
        (((1.0, 2.0), (1.5, 1.5)), SUM, 1),
        (((5.0, 7.0), ()), SAME, 2),
        (((5.0, 5.0), (7.0, 7.0)), MEAN, 2),
        (((5.0,), (6.0,)), OTHER, 1),
    ],
)
def test_what_losses_are_to_that_of_the_reference(
    each: tuple[tuple[float, ...], ...], relation: str, passes: int
) -> None:
    found = losses(*each)
    assert {(one.relation, one.passes) for one in found} == {(relation, passes)}
    assert [one.here for one in found] == [sum(one) for one in each if one]
    assert {one.there for one in found} == {6.0}


def test_without_a_loss_nothing_is_said() -> None:
    assert not losses((), ())
    assert not losses((float("nan"),))
