"""Where seeds come from, and which generators a dataset holds."""

import os
import random
import sysconfig
import time
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from distdoctor.probes.rng import seeds
from distdoctor.probes.rng.held_generators import generators_of
from distdoctor.probes.rng.seeds import source_of
from distdoctor.probes.rng.stream_states import moved, states

NOW_NS = 1_760_000_123_456_789_012
BEGUN_NS = NOW_NS - 20 * 10**9


@pytest.mark.parametrize(
    "seed",
    [
        NOW_NS // 10**9,
        NOW_NS // 10**9 + 3,
        (NOW_NS - 10**9) // 10**6,
        NOW_NS // 1000 % 2**31,
        NOW_NS // 1000 % 2**32 + 1,
        NOW_NS // 10**6 % 2**32,
        NOW_NS % 2**32,
        NOW_NS % (2**32 - 1),
    ],
)
def test_a_seed_from_the_clock_is_known(seed: int) -> None:
    assert source_of(seed, NOW_NS, BEGUN_NS, 4711) == "clock"


@pytest.mark.parametrize("seed", [0, 1, 7, 42, 1234, 1337, 20240, 2**31 - 1, 3407, -5])
def test_a_fixed_seed_is_not_taken_for_the_clock(seed: int) -> None:
    sources = [
        source_of(seed, now, now - 20 * 10**9, 4711)
        for now in range(NOW_NS, NOW_NS + 10**12, 10**9 + 7919)
    ]
    assert sources.count("clock") <= (seed >= 1_000_000)


def test_the_number_of_the_process_is_known() -> None:
    assert source_of(4711, NOW_NS, BEGUN_NS, 4711) == "process"
    assert source_of(42, NOW_NS, BEGUN_NS, 42) == ""


def test_generators_of_a_dataset_are_found_down_to_the_bottom() -> None:
    class Held(TensorDataset):
        def __init__(self) -> None:
            super().__init__(torch.zeros(4, 1))
            self.steps = [{"rng": random.Random(1)}]
            self.own = torch.Generator()

        @property
        def trap(self) -> None:
            raise AssertionError("properties are not called")

    held = Held()
    found = generators_of(Subset(held, [0, 1]))
    assert found == {
        "dataset.dataset.own": held.own,
        "dataset.dataset.steps[0]['rng']": held.steps[0]["rng"],
    }


def test_a_generator_of_the_module_is_found_beside_the_method_that_uses_it() -> None:
    found = generators_of(_Noisy(torch.zeros(1, 1)))
    assert found == {"RNG": RNG}


RNG = random.Random(3)


class _Noisy(TensorDataset):
    def __getitem__(self, index: int) -> float:  # type: ignore[override]
        return RNG.random() + index


def test_reading_states_changes_none_and_tells_what_moved() -> None:
    numpy = pytest.importorskip("numpy")
    own = numpy.random.default_rng(3)
    before = states({"own": own})
    assert states({"own": own}) == before
    torch.rand(1)
    own.random()
    assert moved(before, states({"own": own})) == {"torch", "own"}
    random.random()
    assert "python" in moved(before, states({"own": own}))
    assert time.time_ns() > NOW_NS - 10**18


@pytest.mark.parametrize(
    ("caller", "path"),
    [("<frozen importlib._bootstrap>", None), ("<string>", __file__)],
    ids=["while it is imported", "for the user"],
)
def test_a_seed_that_a_library_needs_to_be_imported_is_its_own(
    caller: str, path: str | None
) -> None:
    library = os.path.join(sysconfig.get_path("purelib"), "library.py")  # noqa: PTH118
    names: dict[str, Any] = {"site_of_call": seeds._site}
    exec(compile("def seed(): return site_of_call(1)", library, "exec"), names)
    exec(compile("def call(): return seed()", caller, "exec"), names)
    found = names["call"]()
    assert found is None if path is None else found.startswith(path)
