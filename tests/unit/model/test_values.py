"""Values behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import msgspec
import pytest

from distdoctor.model.events import Place, Started
from distdoctor.model.observations import KINDS
from distdoctor.model.observations.amp import Overflow
from distdoctor.model.values import value

HERE = Place("train.py", 3)


def test_equal_are_those_of_one_kind_with_equal_fields() -> None:
    one = Started(rank=1, world_size=2, place=HERE)
    assert one == Started(rank=1, world_size=2, place=HERE)
    assert one != Started(rank=1, world_size=4, place=HERE)
    another: object = Overflow(rank=1, place=HERE)
    assert one != another
    assert hash(one) == hash(Started(rank=1, world_size=2, place=HERE))


def test_dataclass_functions_take_them() -> None:
    one = Overflow(rank=1, round=2)
    assert [each.name for each in fields(one)][:2] == ["rank", "place"]
    assert replace(one, round=3) == Overflow(rank=1, round=3)
    assert asdict(one)["round"] == 2
    assert repr(one).startswith("Overflow(rank=1, place=None, ")
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


def test_fields_are_asked_for_by_name() -> None:
    make: Any = Started
    with pytest.raises(TypeError, match=r"Started .*: world_size"):
        make(rank=1)
    with pytest.raises(TypeError, match=r"Started .*: colour"):
        make(world_size=2, colour="red")
    with pytest.raises(TypeError):
        make(1, 2)


def test_nothing_can_be_changed() -> None:
    one: Any = Started(rank=1, world_size=2)
    with pytest.raises(FrozenInstanceError):
        one.rank = 2
    with pytest.raises(FrozenInstanceError):
        del one.rank
    with pytest.raises(FrozenInstanceError):
        one.colour = "red"
    assert not hasattr(one, "__dict__")


def test_one_without_fields_equals_its_like() -> None:
    @value(frozen=True, slots=True, kw_only=True)
    class Nothing:
        """Has no fields."""

    assert Nothing() == Nothing()
    assert len({Nothing(), Nothing()}) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_observation_is_read_back(kind: type[Any]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(kind()), type=kind) == kind()
