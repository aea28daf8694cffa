"""Loops: which one a rank has left that another is still in, and how one leaves it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from distdoctor.analysis.divergence.loop_positions import (
    is_further,
    left,
    loops_around,
    ways_around,
    ways_out,
)
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.run import Frame, Run

SOURCE = """\
def train(loader):
    for epoch in range(3):
        for i, batch in enumerate(loader):
            step(batch)
            if done:
                break
        save(epoch)
    while True:
        finish()

def step(batch):
    all_reduce(batch)

def evaluate():
    for batch in loader:
        if empty(batch):
            continue
        score(batch)

class Trainer:
    def fit(self):
        for batch in self.loader:
            step(batch)

for name in names:
    train(name)
"""

EPOCHS, BATCHES, ENDLESS, SCORES, FIT, NAMES = 2, 3, 8, 15, 22, 25

At = tuple[int, str] | tuple[int, str, Mapping[str, int]]


def frames(*ats: At) -> list[Frame]:
    """A stack, innermost first: line, function and integers of each frame."""
    return [
        Frame(Place("t.py", at[0], at[1]), at[2] if len(at) > 2 else {}) for at in ats
    ]


def run_of(
    stacks: Mapping[int, Sequence[Frame]], sources: Mapping[str, str] | None = None
) -> Run:
    run = sketch("rank 0 | .\nrank 1 | .")
    sources = {"t.py": SOURCE} if sources is None else sources
    return replace(run, stacks=stacks, sources=sources)


def lines_around(*ats: At) -> list[int]:
    stack = frames(*ats)
    return [loop.place.line for _, loop in loops_around(run_of({}), stack)]


# --- around ---------------------------------------------------------------------------


def test_the_loops_of_a_stack_are_innermost_first() -> None:
    stack = ((12, "step"), (4, "train"), (26, "<module>"))
    assert lines_around(*stack) == [BATCHES, EPOCHS, NAMES]


@pytest.mark.parametrize(
    ("line", "loops"),
    [(2, [EPOCHS]), (3, [BATCHES, EPOCHS]), (6, [BATCHES, EPOCHS]), (7, [EPOCHS])],
)
def test_a_loop_is_from_its_head_to_its_last_line(line: int, loops: list[int]) -> None:
    assert lines_around((line, "train")) == loops


def test_a_line_outside_loops_is_in_none() -> None:
    assert lines_around((12, "step")) == []


def test_a_method_is_known_by_its_last_name() -> None:
    assert lines_around((23, "Trainer.fit")) == [FIT]


def test_the_else_of_a_loop_is_behind_it() -> None:
    source = "for i in x:\n    f()\nelse:\n    g()\n"
    run = run_of({}, {"t.py": source})
    assert list(loops_around(run, frames((4, "<module>")))) == []


@pytest.mark.parametrize("source", ["for x in\n", "\0", "for x in y: f(\n"])
def test_a_source_that_is_no_python_has_no_loops(source: str) -> None:
    run = run_of({}, {"t.py": source})
    assert list(loops_around(run, frames((1, "<module>")))) == []


def test_a_source_nobody_kept_has_no_loops() -> None:
    assert list(loops_around(run_of({}, {}), frames((4, "train")))) == []


# --- left -----------------------------------------------------------------------------


def left_by(
    inside: Sequence[Frame], outside: Sequence[Frame]
) -> tuple[int, bool] | None:
    found = left(run_of({0: inside, 1: outside}), 0, 1)
    return None if found is None else (found[0].place.line, found[1])


def test_a_rank_behind_the_loop_has_left_it() -> None:
    assert left_by(frames((12, "step"), (4, "train")), frames((7, "train"))) == (
        BATCHES,
        False,
    )


def test_of_loops_that_were_left_the_outermost_counts() -> None:
    assert left_by(frames((12, "step"), (4, "train")), frames((9, "train"))) == (
        EPOCHS,
        False,
    )


def test_a_rank_that_has_left_the_function_has_left_its_loops() -> None:
    assert left_by(
        frames((4, "train"), (26, "<module>")), frames((27, "<module>"))
    ) == (
        NAMES,
        False,
    )


def test_loops_that_both_are_in_were_not_left() -> None:
    inside = frames((4, "train"), (26, "<module>"))
    outside = frames((7, "train"), (26, "<module>"))
    assert left_by(inside, outside) == (BATCHES, False)


def test_ranks_in_the_same_loop_left_none() -> None:
    assert left_by(frames((4, "train")), frames((5, "train"))) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "all_rounds"), [(2, 1, False), (2, 2, True), (2, 3, True)]
)
def test_the_loops_own_variable_tells_the_rounds(
    mine: int, theirs: int, all_rounds: bool
) -> None:
    inside = frames((4, "train", {"i": mine, "epoch": 0}))
    outside = frames((7, "train", {"i": theirs, "epoch": 0}))
    assert left_by(inside, outside) == (BATCHES, all_rounds)


def test_another_variable_tells_nothing_of_the_rounds() -> None:
    inside = frames((4, "train", {"epoch": 2}))
    outside = frames((7, "train", {"epoch": 2}))
    assert left_by(inside, outside) == (BATCHES, False)


@pytest.mark.parametrize("missing", [0, 1])
def test_without_a_stack_nothing_is_known(missing: int) -> None:
    stacks = {0: frames((4, "train")), 1: frames((7, "train"))}
    del stacks[missing]
    assert left(run_of(stacks), 0, 1) is None


# --- ways -----------------------------------------------------------------------------


def lines(places: Sequence[Place]) -> list[int]:
    return [place.line for place in places]


@pytest.mark.parametrize(
    ("line", "function", "out", "around"),
    [
        (4, "train", [6], []),
        (18, "evaluate", [], [17]),
        (7, "train", [], []),
        (12, "step", [], []),
    ],
)
def test_a_loop_is_left_and_gone_around_at_its_jumps(
    line: int, function: str, out: list[int], around: list[int]
) -> None:
    run, place = run_of({}), Place("t.py", line, function)
    assert lines(ways_out(run, place)) == out
    assert lines(ways_around(run, place)) == around


JUMPS = """\
def f():
    for x in y:
        for z in x:
            if a:
                break
            if b:
                return
        def g():
            return
        try:
            h(x)
        except E:
            continue
        with w:
            break
"""


def test_jumps_of_inner_loops_and_functions_are_their_own() -> None:
    run, place = run_of({}, {"t.py": JUMPS}), Place("t.py", 11, "f")
    assert lines(ways_out(run, place)) == [7, 15]
    assert lines(ways_around(run, place)) == [13]


@pytest.mark.parametrize(
    "body",
    [
        "        match x:\n            case 1:\n                continue\n",
        "        try:\n            h()\n        except* E:\n            pass\n"
        "        else:\n            continue\n",
        "        for z in x:\n            pass\n        else:\n            continue\n",
    ],
)
def test_a_jump_is_found_wherever_it_stands(body: str) -> None:
    source = f"def f():\n    for x in y:\n        g(x)\n{body}"
    run = run_of({}, {"t.py": source})
    assert len(ways_around(run, Place("t.py", 3, "f"))) == 1


def test_a_loop_with_many_ways_out_tells_nothing() -> None:
    body = "".join(f"    if a == {n}:\n        break\n" for n in range(3))
    run = run_of({}, {"t.py": f"for x in y:\n    f(x)\n{body}"})
    assert ways_out(run, Place("t.py", 2, "<module>")) == []


def test_a_place_nobody_knows_has_no_ways() -> None:
    assert ways_out(run_of({}), None) == []
    assert ways_around(run_of({}), Place("other.py", 3)) == []


# --- further --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "ahead", "expected"),
    [
        ((4, {"i": 3, "epoch": 1}), (5, {"i": 3, "epoch": 1}), True),
        ((4, {"i": 3, "epoch": 1}), (4, {"i": 4, "epoch": 1}), True),
        ((4, {"i": 3, "epoch": 1}), (4, {"i": 3, "epoch": 1}), False),
        ((4, {"i": 4, "epoch": 1}), (5, {"i": 3, "epoch": 1}), False),
        ((4, {"i": 9, "epoch": 1}), (4, {"i": 0, "epoch": 2}), True),
        ((4, {"i": 0, "epoch": 2}), (5, {"i": 9, "epoch": 1}), False),
        ((4, {"i": 3}), (5, {"i": 3}), False),
        ((4, {"i": 3, "epoch": 1}), (7, {"epoch": 1}), True),
        ((7, {"epoch": 1}), (4, {"i": 3, "epoch": 1}), False),
    ],
)
def test_who_is_further_in_the_same_loops(
    behind: tuple[int, Mapping[str, int]],
    ahead: tuple[int, Mapping[str, int]],
    expected: bool,
) -> None:
    stacks = {
        rank: frames((line, "train", integers))
        for rank, (line, integers) in enumerate((behind, ahead))
    }
    assert is_further(run_of(stacks), 0, 1) is expected


def test_without_stacks_nobody_is_known_to_be_further() -> None:
    assert not is_further(run_of({}), 0, 1)
