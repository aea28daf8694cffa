"""Looking for living objects disturbs no other thread."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.probes.live_objects import living


class Sought:
    """What is looked for."""


class Under(Sought):
    """Of the kind."""


class Lower(Under):
    """Of the kind, further down."""


class OddlyMade(type):
    """Its classes have no hash, and are not to be compared."""

    def __eq__(cls, other: object) -> bool:  # and so has no hash
        raise AssertionError("a probe must not ask")


class Odd(metaclass=OddlyMade):
    """Of another kind."""


class Proxy:
    """Tells that it was asked for its class."""

    asked = 0

    def __getattribute__(self, name: str) -> object:
        Proxy.asked += name == "__class__"
        return object.__getattribute__(self, name)


@given(st.lists(st.sampled_from([Sought, Under, Lower, Proxy, Odd, dict]), max_size=20))
@settings(max_examples=30, deadline=None)
def test_all_of_a_kind_are_found_and_no_others(kinds: list[type]) -> None:
    made = [kind() for kind in kinds]
    expected = [id(one) for one in made if issubclass(type(one), Sought)]
    assert sorted(map(id, living(Sought))) == sorted(expected)
    assert Proxy.asked == 0


def test_a_kind_with_two_ways_to_it_is_found_once() -> None:
    class Left(Sought):
        pass

    class Right(Sought):
        pass

    class Both(Left, Right):
        pass

    one = Both()
    assert [thing for thing in living(Sought) if type(thing) is Both] == [one]


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_another_thread_builds_its_tuples_meanwhile() -> None:
    """With a loop over `gc.get_objects()` this fails within the first few looks."""
    done = threading.Event()
    broken: list[SystemError] = []
    built = 0

    def build() -> None:
        nonlocal built
        while not done.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:
                broken.append(error)
            built += 1

    builder = threading.Thread(target=build)
    builder.start()
    try:
        for _ in range(20):
            living(Sought)
    finally:
        done.set()
        builder.join()
    assert built
    assert not broken


def test_nothing_is_kept() -> None:
    one = Sought()
    before = sys.getrefcount(one)
    living(Under)
    assert sys.getrefcount(one) == before
    assert gc.isenabled()


def test_audit_hooks_are_not_called_for_each_object() -> None:
    """Python tells them of each call of `id`, and a hook cannot be taken away."""
    program = """
import sys
from distdoctor.probes.live_objects import living

class Kind: pass

kept, heard = Kind(), []
sys.addaudithook(lambda event, args: heard.append(event))
found = living(Kind)
count = len(heard)
assert found == [kept]
print(count)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) < 20
