"""Parts of tensors are found in the whole, however they are cut."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.analysis.comparison.shard_places import NOWHERE, Wholes


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_any_cut_along_any_axes_is_found(data: st.DataObject, shape: list[int]) -> None:
    whole = random(*shape)
    axes = [
        np.array(data.draw(st.permutations(range(size))))[
            : data.draw(st.integers(1, size))
        ]
        for size in shape
    ]
    part = whole[np.ix_(*axes)]
    found = Wholes({"w": whole, "other": random(*shape, seed=1)}).places({"w": part})
    assert found["w"].name == "w"
    if len(shape) > 1 and part.ndim == 1:
        return
    assert np.array_equal(found["w"].of(whole), part)
    gradient = random(*shape, seed=2)
    assert np.array_equal(found["w"].of(gradient), gradient[np.ix_(*axes)])


def test_a_part_that_was_filled_up_is_found() -> None:
    whole = random(10, 3)
    part = np.concatenate([whole[8:], np.zeros((2, 3), np.float32)])
    here = Wholes({"w": whole}).places({"w": part})["w"]
    assert here.axes[0].tolist() == [8, 9, NOWHERE, NOWHERE]
    assert np.array_equal(here.of(whole), part)


def test_a_flat_part_is_found_in_a_matrix() -> None:
    whole = random(4, 6)
    here = Wholes({"w": whole}).places({"w": whole.reshape(-1)[5:14]})["w"]
    assert here.axes[0].tolist() == [*range(5, 14)]
    assert np.array_equal(here.of(whole), whole.reshape(-1)[5:14])


def test_ones_between_and_beside_others_of_a_flat_part_are_found() -> None:
    whole = np.concatenate([random(5), np.ones(4, np.float32), random(7, seed=1)])
    wholes = Wholes({"w": whole})
    for first, end in ((0, 8), (8, 16), (3, 12)):
        here = wholes.places({"w": whole[first:end]})["w"]
        assert here.axes[0].tolist() == [*range(first, end)]


def test_rows_of_zeros_between_others_are_no_filling() -> None:
    whole = random(6, 3)
    whole[2] = 0
    here = Wholes({"w": whole}).places({"w": whole[1:5]})["w"]
    assert here.axes[0].tolist() == [1, 2, 3, 4]


def test_what_fills_a_part_up_is_nobodys() -> None:
    whole = random(10, 3)
    part = np.concatenate([whole[8:], np.zeros((2, 3), np.float32)])
    here = Wholes({"w": whole}).places({"w": part})["w"]
    assert not here.within(np.ones((4, 3)))[2:].any()
    assert here.within(np.ones((4, 3)))[:2].all()


def test_heads_that_are_interleaved_are_found() -> None:
    whole = random(3 * 8, 5)  # query, key and value of 8 heads of one number each
    part = whole.reshape(3, 8, 5)[:, 4:].reshape(12, 5)
    here = Wholes({"qkv": whole}).places({"qkv": part})["qkv"]
    assert here.axes[0].tolist() == [*range(4, 8), *range(12, 16), *range(20, 24)]


def test_layers_and_experts_are_found_by_what_they_hold() -> None:
    wholes = {f"layers.{n}.weight": random(4, 4, seed=n) for n in range(4)}
    wholes |= {f"layers.{n}.bias": np.zeros(4, np.float32) for n in range(4)}
    parts = {
        f"layers.{n}.{one}": wholes[f"layers.{n + 2}.{one}"]
        for n in range(2)
        for one in ("weight", "bias")
    }
    found = Wholes(wholes).places(parts)
    assert {mine: here.name for mine, here in found.items()} == {
        f"layers.{n}.{one}": f"layers.{n + 2}.{one}"
        for n in range(2)
        for one in ("weight", "bias")
    }


def test_a_bias_of_zeros_lies_where_its_weight_does() -> None:
    wholes = {"up.weight": random(8, 3), "up.bias": np.zeros(8, np.float32)}
    rows = [1, 5, 6]
    parts = {"up.weight": wholes["up.weight"][rows], "up.bias": np.zeros(3, np.float32)}
    assert Wholes(wholes).places(parts)["up.bias"].axes[0].tolist() == rows


def test_ones_lie_where_all_others_of_the_rank_are_cut() -> None:
    wholes = {"a": random(8, 3), "norm": np.ones(4, np.float32)}
    parts = {"a": wholes["a"][4:], "norm": np.ones(2, np.float32)}
    assert Wholes(wholes).places(parts)["norm"].axes[0].tolist() == [2, 3]


def test_ones_that_may_lie_in_several_places_are_left_out() -> None:
    wholes = {"a": random(8, 3), "b": random(8, 3, seed=1)}
    wholes["norm"] = np.ones(4, np.float32)
    parts = {"a": wholes["a"][4:], "b": wholes["b"][:4], "norm": np.ones(2, np.float32)}
    assert "norm" not in Wholes(wholes).places(parts)


@pytest.mark.parametrize("part", [random(4, 3, seed=9), random(9, 3), random(2, 3, 1)])
def test_what_is_no_part_is_not_found(part: Any) -> None:
    assert not Wholes({"w": random(8, 3)}).places({"w": part})


def test_parts_are_the_same_on_ranks_that_have_the_same() -> None:
    wholes = Wholes({"w": random(8, 3)})
    whole = wholes.values["w"]
    one, other = (wholes.places({"w": whole[:4]})["w"] for _ in range(2))
    assert one.same_as(other)
    assert not one.same_as(wholes.places({"w": whole[4:]})["w"])
    assert wholes.places({"w": whole})["w"].is_all
    assert not one.is_all
