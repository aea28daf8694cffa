"""The cure of a skipped call names what was seen: the test, who calls, who leaves."""

from __future__ import annotations

import importlib
from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.skipped_calls import PartedAtCall
from distdoctor.analysis.divergence.unequal_rounds import LeftLoop, OneMoreRound
from distdoctor.analysis.divergence.ways_out import WayOut
from distdoctor.analysis.source.rank_variation import Nature
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Sick

(CHECK,) = [check for check in every_check() if check.code == "DD108"]

IN_A_BRANCH = """
for step in range(4):
    if rank != 2:
        all_reduce(gradients)
    barrier()
"""

ALONE = """
def save():
    barrier()
for step in range(4):
    all_reduce(gradients)
    if get_rank() == 0:
        save()
"""

LEAVES = """
for step in range(4):
    if get_rank() == 2:
        continue
    all_reduce(gradients)
barrier()
"""

STAYS = """
def save(state):
    if get_rank() != 0:
        return
    write(state)
    barrier()
for step in range(4):
    all_reduce(gradients)
    save(state)
"""

OWN_DATA = """
for batch in loader:
    loss = model(batch)
    if loss.item() > 9:
        continue
    all_reduce(gradients)
barrier()
"""

BY_A_HELPER = """
def share(batch):
    if not found(batch):
        return
    barrier()
for batch in loader:
    share(batch)
    all_reduce(gradients)
"""

CURES = {
    "kept out by a test": (
        IN_A_BRANCH,
        """
        rank 0 | all_reduce(9)@t.py:3...
        rank 1 | all_reduce(9)@t.py:3...
        rank 2 | barrier@t.py:4!
        """,
        "Let rank 2 come to all_reduce (t.py:3), too: move it out of `if rank != 2` "
        "(t.py:2), or let all ranks call it there.",
    ),
    "alone behind a test, by a function": (
        ALONE,
        """
        rank 0 | all_reduce(9)@t.py:4  barrier@t.py:2<t.py:6...
        rank 1 | all_reduce(9)@t.py:4  all_reduce(9)@t.py:4!
        rank 2 | all_reduce(9)@t.py:4  all_reduce(9)@t.py:4!
        """,
        "Let all ranks come to barrier (t.py:2), or none: move what leads to it out of "
        "`if get_rank() == 0` (t.py:5).",
    ),
    "leaves before it": (
        LEAVES,
        """
        rank 0 | all_reduce(9)@t.py:4...
        rank 1 | all_reduce(9)@t.py:4...
        rank 2 | barrier@t.py:5!
        """,
        "Let rank 2 come to all_reduce (t.py:4), too, before it leaves by `if "
        "get_rank() == 2: continue` (t.py:2), with zeros if it has nothing to give.",
    ),
    "stays where the others leave": (
        STAYS,
        """
        rank 0 | all_reduce(9)@t.py:7  barrier@t.py:5<t.py:8...
        rank 1 | all_reduce(9)@t.py:7  all_reduce(9)@t.py:7!
        rank 2 | all_reduce(9)@t.py:7  all_reduce(9)@t.py:7!
        """,
        "Let all ranks come to barrier (t.py:5), or none: move it above `if get_rank() "
        "!= 0: return` (t.py:2), by which the others leave.",
    ),
    "by its own data": (
        OWN_DATA,
        """
        rank 0 | all_reduce(9)@t.py:5...
        rank 1 | all_reduce(9)@t.py:5...
        rank 2 | barrier@t.py:6!
        """,
        "Let the ranks decide together at `if loss.item() > 9: continue` (t.py:3): "
        "`all_reduce` the flag (MAX) before it, and branch on the result; or let rank "
        "2 call all_reduce before it leaves, with zeros if it has nothing to give.",
    ),
    "skipped by its own data, in a helper": (
        BY_A_HELPER,
        """
        rank 0 | barrier@t.py:4<t.py:6  all_reduce(9)@t.py:7  barrier@t.py:4<t.py:6...
        rank 1 | barrier@t.py:4<t.py:6  all_reduce(9)@t.py:7  barrier@t.py:4<t.py:6...
        rank 2 | barrier@t.py:4<t.py:6  all_reduce(9)@t.py:7  all_reduce(9)@t.py:7!
        """,
        "Let the ranks decide together at `if not found(batch): return` (t.py:2): "
        "`all_reduce` the flag (MAX) before it, and branch on the result; or let rank "
        "2 call barrier (t.py:4) all the same.",
    ),
    "no source": (
        "",
        """
        rank 0 | all_reduce(4)@t.py:7  barrier@save.py:3...
        rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
        rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
        """,
        "Let all ranks call barrier, or none: rank 0 alone calls it (call 2 on world).",
    ),
}


@pytest.mark.parametrize(("source", "drawing", "cure"), CURES.values(), ids=CURES)
def test_the_cure_names_what_was_seen(source: str, drawing: str, cure: str) -> None:
    run = sketch(drawing)
    if source:
        run = replace(run, sources={"t.py": cleandoc(source)})
    told = verdict(run, CHECK)
    assert isinstance(told, Sick)
    (found,) = told.findings
    assert found.remedy == cure


def test_where_nothing_more_is_known_the_manual_is_told() -> None:
    run = sketch(
        """
        rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
        rank 1 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
        rank 2 | all_reduce(4)@t.py:7  barrier@t.py:9  barrier@t.py:9...
        """
    )
    told = verdict(run, CHECK)
    assert isinstance(told, Sick)
    assert [one.remedy for one in told.findings] == [""]
    assert told.remedy.startswith("Take the collective out of the branch")


LOOP, LINE = Place("t.py", 5), Place("t.py", 9)
CALL = Call(rank=0, op="barrier", group="world", place=LINE, ordinal=4)

WAY = WayOut(LINE, "if x: break", Nature.LOCAL)

OF_FACTS = {
    "left a loop": (
        LeftLoop((1,), (0, 2), LOOP, CALL, "all_reduce", "", after_all=False),
        "Let all ranks leave the loop at t.py:5 behind the same round: give them as "
        "many rounds, or decide together to leave, by an `all_reduce` of the flag "
        "(MAX).",
    ),
    "came through its round": (
        LeftLoop((1,), (0, 2), LOOP, CALL, "all_reduce", "", after_all=True),
        "",
    ),
    "one more round": (
        OneMoreRound((1,), (0, 2), LOOP, "all_reduce", "", CALL, WAY),
        "Let all ranks leave the loop at t.py:5 behind the same round: give them as "
        "many rounds, or decide together to leave by `if x: break` (t.py:9), by an "
        "`all_reduce` of the flag (MAX).",
    ),
    "alone on a way": (
        PartedAtCall((1,), (0, 2), LOOP, "barrier", "", few=True),
        "Let all ranks come from t.py:5 to barrier, or none: rank 1 alone does.",
    ),
}


@pytest.mark.parametrize(("facts", "cure"), OF_FACTS.values(), ids=OF_FACTS)
def test_the_cure_names_a_loop_or_who_is_alone(facts: object, cure: str) -> None:
    divergence = Divergence(Cause.SKIPPED, None, 0, {}, (1,), (0, 2), facts)
    module = importlib.import_module(CHECK.examine.__module__)
    assert module._cure(divergence) == cure
