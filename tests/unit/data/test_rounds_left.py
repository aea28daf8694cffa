"""How often a line will be run again: read from the source, without running it.

The loops stand in functions of their own: pytest's asserts ask for `locals`, and
functions that do are left alone.
"""

import sys
import weakref
from types import SimpleNamespace

import pytest

from distdoctor.probes.data.rounds_left import rounds_left

EPOCHS = 4

Found = list[int | None]


def ask(found: Found) -> None:
    """Note how often the line that calls this will be run again."""
    found.append(rounds_left(sys._getframe(1)))


def no_loop(found: Found) -> None:
    ask(found)


def attribute(found: Found) -> None:
    args = SimpleNamespace(epochs=3)
    for _epoch in range(1, args.epochs + 1):
        ask(found)


def item(found: Found) -> None:
    config = {"epochs": 3}
    for _epoch in range(config["epochs"]):
        ask(found)


def steps(found: Found, n: int = 5) -> None:
    for _epoch in range(0, n * 3, 5):
        ask(found)


def constant_of_the_module(found: Found) -> None:
    for _epoch in range(EPOCHS - 1):
        ask(found)


def nested(found: Found) -> None:
    for _fold in range(2):
        for _epoch in range(3):
            ask(found)


def callers(found: Found) -> None:
    for _epoch in range(3):
        no_loop(found)


def after_a_loop(found: Found) -> None:
    for _ in range(9):
        pass
    ask(found)


def defined_in_a_loop(found: Found) -> None:
    for _ in range(9):

        def train() -> None:
            ask(found)

    train()


def tqdm(values: range, desc: str) -> range:
    return values if desc else range(0)


def progress_bar(found: Found) -> None:
    for _epoch in tqdm(range(3), desc="epochs"):
        ask(found)


def whole_list(found: Found) -> None:
    for _lr in (0.1, 0.2):
        ask(found)


def one_line(found: Found) -> None:
    for _epoch in range(2): ask(found)  # fmt: skip  # noqa: E701


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (no_loop, [0]),
        (attribute, [2, 1, 0]),
        (item, [2, 1, 0]),
        (steps, [2, 1, 0]),
        (constant_of_the_module, [2, 1, 0]),
        (nested, [5, 4, 3, 2, 1, 0]),
        (callers, [2, 1, 0]),
        (after_a_loop, [0]),
        (defined_in_a_loop, [0]),
        (progress_bar, [2, 1, 0]),
        (whole_list, [1, 1]),  # which of them it is, nobody knows
        (one_line, [0, 0]),  # the loop that begins on the line is the one that asks
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_loops_that_tell_are_understood(job: object, expected: Found) -> None:
    found: Found = []
    assert callable(job)
    job(found)
    assert found == expected


class Stored:
    """A setting that would notice being computed."""

    read = 0

    @property
    def epochs(self) -> int:
        """The number of epochs, and a trace of having been asked."""
        Stored.read += 1
        return 2


def open_end(found: Found) -> None:
    while not found:
        ask(found)


def an_iterator(found: Found) -> None:
    for _ in iter([1]):
        ask(found)


def a_function(found: Found) -> None:
    for _ in range(len("a")):
        ask(found)


def a_property(found: Found) -> None:
    stored = Stored()
    for _ in range(stored.epochs):
        ask(found)


def enumerated(found: Found) -> None:
    for _, _x in enumerate(range(1)):
        ask(found)


def no_step(found: Found) -> None:
    step = 2
    for _ in range(0, 4, step):
        step = 0
        ask(found)


def unset(found: Found) -> None:
    epochs = 2
    for _ in range(epochs):
        if found:
            break
        del epochs
        ask(found)


def huge(found: Found) -> None:
    for _ in range(10**12):
        ask(found)
        break


@pytest.mark.parametrize(
    "job",
    [open_end, an_iterator, a_function, a_property, enumerated, no_step, unset, huge],
    ids=lambda job: job.__name__,
)
def test_what_is_not_plain_is_not_known(job: object) -> None:
    found: Found = []
    assert callable(job)
    Stored.read = 0
    job(found)
    assert found
    assert set(found) == {None}
    assert Stored.read == (job is a_property)  # once, by the loop itself


def test_code_without_a_source_tells_nothing() -> None:
    found: Found = []
    names: dict[str, object] = {"ask": ask, "found": found}
    exec(compile("for _ in range(2): \n    ask(found)", "/gone.py", "exec"), names)
    assert found == [None, None]


class Held:
    """Something whose end can be seen."""


def lets_go(found: Found) -> list[bool]:
    held: Held | None = Held()
    end = weakref.ref(held)
    alive = []
    for _epoch in range(2):
        ask(found)
        held = None
        alive.append(end() is not None)
    return alive


def test_what_the_user_lets_go_of_is_not_held() -> None:
    found: Found = []
    assert lets_go(found) == [False, False]
    assert found == [1, 0]


def keeps_locals(found: Found) -> dict[str, object]:
    epochs = 2
    seen = locals()
    for _epoch in range(epochs):
        ask(found)
    return seen


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="frames keep no copy there")
def test_a_function_that_asks_for_its_locals_is_left_alone() -> None:
    found: Found = []
    seen = keeps_locals(found)
    assert found == [None, None]
    assert sorted(seen) == ["epochs", "found"]
