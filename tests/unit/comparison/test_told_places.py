"""What the user says of where tensors lie."""

from typing import Any

import numpy as np
import pytest

from distdoctor.analysis.comparison.told_places import ToldPlace, told_place

WHOLE = {"layers.4.bias": np.arange(6.0), "head": np.arange(12.0).reshape(3, 4)}


def place(row: ToldPlace, rank: int, name: str, part: Any) -> Any:
    found = told_place([ToldPlace(tensor="other"), row], rank, name, part, WHOLE)
    return None if found is None else found.of(WHOLE[found.name]).tolist()


def test_a_name_is_taken_over_with_its_stars() -> None:
    row = ToldPlace(tensor="stage.*.bias", reference="layers.*.bias", axis=0)
    assert place(row, 1, "stage.4.bias", np.zeros(2)) == [2.0, 3.0]
    assert place(row, 1, "stage.5.bias", np.zeros(2)) is None


def test_parts_are_told_by_rank() -> None:
    row = ToldPlace(tensor="head", axis=1, parts=(1, 0, 1))
    assert place(row, 0, "head", np.zeros((3, 2))) == [[2, 3], [6, 7], [10, 11]]
    assert place(row, 1, "head", np.zeros((3, 2))) == [[0, 1], [4, 5], [8, 9]]


def test_without_an_axis_each_rank_has_all() -> None:
    row = ToldPlace(tensor="*")
    assert place(row, 1, "head", np.zeros((3, 4))) == WHOLE["head"].tolist()


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (ToldPlace(tensor="head", axis=0), (2, 4)),  # no third row and fourth
        (ToldPlace(tensor="head", axis=1), (3, 4, 1)),
        (ToldPlace(tensor="head"), (3, 2)),
        (ToldPlace(tensor="hea"), (3, 4)),
        (ToldPlace(tensor="head", axis=5), (3, 2)),
    ],
)
def test_what_does_not_fit_says_nothing(row: ToldPlace, shape: tuple[int, ...]) -> None:
    assert place(row, 1, "head", np.zeros(shape)) is None
