"""Loops over names that ranks go through in other orders: what is seen, and told."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Observation
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.divergence import Turn
from distdoctor.probes.collectives.loop_names import TURNS
from distdoctor.probes.recorder import RECORDER

SOURCE = dedent("""
    def means(sums):
        for name in sums:
            total = sums[name]
            dist.all_reduce(total)
            sums[name] = total
""")


def calls(names: str, op: str = "all_reduce({size})") -> str:
    """Calls in a loop over names; "." is one of another line."""
    words = []
    for n, name in enumerate(names, start=1):
        if name == ".":
            words.append("all_reduce(9)@t.py:9")
            continue
        call = op.format(size=2)
        words.append(
            f"{call}@t.py:5  turn(variables=name,names={name},ordinal={n})@t.py:3"
        )
    return "  ".join(words)


def divergences_of(
    *ranks: str, source: str = SOURCE, **options: str
) -> list[Divergence]:
    lines = [f"rank {n} | {calls(names, **options)}" for n, names in enumerate(ranks)]
    run = replace(sketch("\n".join(lines)), sources={"t.py": source})
    return divergences(run)


def test_calls_for_different_names_are_paired() -> None:
    (found,) = divergences_of("..ab.ab", "..ab.ba")
    assert (found.why, found.culprits, found.victims) == (Cause.ORDER, (), (0, 1))
    assert found.certainty is Certainty.LIKELY
    assert found.ordinal == 6
    assert [location.place.line for location in found.elsewhere] == [3]
    assert {call.place.line for call in found.calls.values() if call.place} == {5}


def test_the_minority_is_at_fault() -> None:
    (found,) = divergences_of("abc", "acb", "abc")
    assert (found.culprits, found.victims) == ((1,), (0, 2))


@pytest.mark.parametrize(
    ("ranks"),
    [
        ("ab.ab", "ab.ab"),
        ("ab", "cd"),  # names of their own
        ("ab", "ac"),
        ("aa", "bb"),
        ("a", "b"),
        ("abab", "baba"),
    ],
)
def test_other_names_and_one_order_are_well(ranks: tuple[str, ...]) -> None:
    found = divergences_of(*ranks)
    assert bool(found) is (ranks == ("abab", "baba"))


def test_the_source_must_keep_them_by_name() -> None:
    source = SOURCE.replace("sums[name] = total", "x = 1")
    assert divergences_of("ab", "ba", source=source)  # an entry that is changed itself
    source = source.replace("total = sums[name]", "total = norm(model)")
    assert not divergences_of("ab", "ba", source=source)
    assert not divergences_of("ab", "ba", source="")


def test_what_carries_gradients_must_be_the_names_own() -> None:
    source = SOURCE.replace("= sums[name]", "= gradients(data[name])")
    assert divergences_of("ab", "ba", source=source)
    sent = "  sent@t.py:5"
    lines = [f"rank {n} | {calls(names)}{sent}" for n, names in enumerate(("ab", "ba"))]
    run = replace(sketch("\n".join(lines)), sources={"t.py": source})
    assert not divergences(run)


def test_a_barrier_puts_nothing_together() -> None:
    assert not divergences_of("ab", "ba", op="barrier")


def test_a_call_that_cannot_be_matched_is_left_out() -> None:
    shifted = calls("ba").replace("ordinal=1", "ordinal=7")
    run = sketch(f"rank 0 | {calls('ab')}\nrank 1 | {shifted}")
    assert not divergences(replace(run, sources={"t.py": SOURCE}))


# --- the probe ---


USERS = """
def plain(call, names):
    for name in names:
        call()

def pairs(call, names):
    for n, (name, value) in enumerate(names):
        if value:
            call()

def made(call, names):
    return {name: call() for name in names}

def inner(call, names):
    for name in names:
        for n in range(2):
            call()

def numbers(call, names):
    word = "x"
    for n in names:
        call()

def helper(call, names):
    for name in names:
        plain(call, [1])

def waiting(call, names):
    for name in names:
        while True:
            call()
            break

def alone(call, names):
    name = "x"
    call()
"""


@pytest.fixture
def users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[dict[str, Any], list[tuple[Turn, str]]]]:
    """Functions of a user's file, and what is observed."""
    file = tmp_path / "t.py"
    file.write_text(USERS)
    names: dict[str, Any] = {}
    exec(compile(USERS, str(file), "exec"), names)
    heard: list[tuple[Turn, str]] = []

    def observe(event: Observation, site: str = "") -> None:
        assert isinstance(event, Turn)
        heard.append((event, site.split("\n")[1]))

    monkeypatch.setattr(RECORDER, "observe", observe)
    TURNS.reset()
    yield names, heard
    TURNS.reset()


# In a file that is nobody's, so that the caller's line is the first of the user's.
BELOW = """
def call():
    if turns.are_open(site):
        turns.look(site, next(ordinals))
"""


def entering(site: int) -> Any:
    """A call as the probe sees it: some frames below the user's line."""
    names: dict[str, Any] = {"turns": TURNS, "site": str(site), "ordinals": count(1)}
    exec(compile(BELOW, "<torch>", "exec"), names)
    return names["call"]


@pytest.mark.parametrize(
    ("function", "given", "line", "names"),
    [
        ("plain", ["a", "b"], "3", [("a",), ("b",)]),
        ("pairs", [("a", 1), ("b", 0), ("c", 2)], "7", [("a",), ("c",)]),
        ("made", ["a", "b"], "12", [("a",), ("b",)]),
        ("plain", ["a" * 81], "", []),
        ("inner", ["a"], "", []),
        ("numbers", [1, 2], "", []),
        ("helper", ["a"], "", []),
        ("waiting", ["a"], "", []),
        ("alone", [], "", []),
    ],
)
def test_the_names_of_the_innermost_loop_are_told(
    users: tuple[dict[str, Any], list[tuple[Turn, str]]],
    function: str,
    given: list[object],
    line: str,
    names: list[tuple[str, ...]],
) -> None:
    functions, heard = users
    functions[function](entering(4), given)
    assert [turn.names for turn, _ in heard] == names
    assert {where for _, where in heard} == ({line} if line else set())
    assert [turn.ordinal for turn, _ in heard] == list(range(1, len(names) + 1))


def test_a_line_is_told_so_often_and_no_more(
    users: tuple[dict[str, Any], list[tuple[Turn, str]]],
) -> None:
    functions, heard = users
    functions["plain"](entering(4), ["a", "b"] * 1000)
    assert len(heard) == 128
    assert not TURNS.are_open("4")
    for site in range(5, 50):
        functions["plain"](entering(site), ["a"])
    assert len(heard) == 128 + 31
