"""What resumed jobs lack, in shapes that the manuals do not show."""

from dataclasses import replace

import pytest

from distdoctor.analysis.checkpoints.incomplete_resume import incomplete
from distdoctor.analysis.checkpoints.lost_loads import in_vain
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

MODEL = "given(what=model,matched=4)"


def missing_states(drawing: str) -> list[tuple[object, Certainty]]:
    found = incomplete(sketch(drawing))
    return [(one.details["state"], one.certainty) for one in found]


def test_state_in_several_files_is_one() -> None:
    assert missing_states(
        f"rank 0 | opened(file=m,parts=model)  {MODEL}"
        "  opened(file=o,parts=optimizer,filled=1)  given(what=optimizer)"
        "  opened(file=s,parts=scheduler,position=4,schedule=7)"
        "  continued(filled,position=0,schedule=7,scheduler=0)"
    ) == [("scheduler", Certainty.PROVED)]


def test_another_sampler_has_another_count() -> None:
    """That of the validation set is told its epochs in between."""
    assert not missing_states(
        "rank 0 | shuffled(length=9)  shuffled(length=5)"
        "  shuffled(epoch=1,length=9)  shuffled(epoch=1,length=5)  continued"
        "  stored(file=c,parts=model+optimizer,filled=1)"
        f"  opened(file=c,parts=model+optimizer,filled=1)  {MODEL}"
        "  given(what=optimizer)  shuffled(epoch=2,length=9)"
        "  shuffled(epoch=2,length=5)  continued(filled)"
    )


def test_a_new_optimizer_of_other_rules_is_a_new_training() -> None:
    begun = "rank 0 | continued(rules=5,lr=0.1)"
    stored = "stored(file=c,parts=model+optimizer,filled=1,rules=5,lr=0.1)"
    opened = f"opened(file=c,parts=model+optimizer,filled=1,lr=0.1)  {MODEL}"
    line = f"{begun}  {stored}  {opened}"
    assert missing_states(f"{line}  continued(number=1,rules=5,lr=0.1)") == [
        ("optimizer", Certainty.LIKELY)
    ]
    assert not missing_states(f"{line}  continued(number=1,rules=6,lr=0.1)")
    assert not missing_states(f"{line}  continued(number=1,rules=5,lr=0.01)")
    # It is the same optimizer: what it had was thrown away on purpose.
    assert not missing_states(f"{line}  continued(rules=5,lr=0.1)")


def test_an_optimizer_that_got_the_state_of_another_is_told() -> None:
    assert missing_states(
        f"rank 0 | opened(file=c,parts=model+optimizer,filled=1)  {MODEL}"
        "  given(what=optimizer)  continued(number=1)"
    ) == [("optimizer", Certainty.PROVED)]


def test_only_the_ranks_that_lack_a_part_are_named() -> None:
    opened = f"opened(file=c,parts=model+optimizer,filled=1)  {MODEL}"
    restored = f"{opened}  given(what=optimizer)  continued(filled)"
    lacking = f"{opened}  given(what=scheduler)  continued"
    (finding,) = incomplete(
        sketch(f"rank 0 | {restored}\nrank 1 | {lacking}\nrank 2 | {restored}")
    )
    assert finding.culprits == (1,)


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ("given(what=model,matched=2)  given(what=model,missing=3,unexpected=6)", 0),
        (
            "given(what=model,matched=2)"
            "  given(what=model,missing=3,unexpected=3,explained=3,prefix=module.)",
            1,
        ),
        ("given(what=model,matched=3,own,unexpected=3)", 0),
        ("given(what=model,matched=3,own,unexpected=3,explained=3)", 1),
        ("given(what=model,matched=1,missing=20,unexpected=20,explained=20)", 1),
        ("given(what=model,matched=20,missing=1,unexpected=20,explained=1)", 0),
        ("given(what=model,empty,missing=3)", 0),
    ],
)
def test_a_load_is_in_vain_only_if_the_names_say_so(given: str, lost: int) -> None:
    assert len(list(in_vain(sketch(f"rank 0 | {given}")))) == lost


def test_what_calls_the_helpers_that_restore_and_make_is_told() -> None:
    """There the calls can be moved: the scheduler is made behind what restores."""
    source = """
def restore():
    model.load_state_dict(kept)
def configure():
    return Schedule(optimizer)
def session():
    restore()
    configure()
session()
"""
    run = sketch("""
        rank 0 | continued
               | stored(file=c,parts=optimizer+scheduler,position=4,schedule=7)  barrier
               | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7)@t.py:3
               | given(what=model,matched=4)  given(what=optimizer)@t.py:3
               | scheduled(kind=StepLR,number=1)@t.py:5
               | continued(filled,position=0,schedule=7,scheduler=1)
    """)
    (found,) = incomplete(replace(run, sources={"t.py": source}))
    leading = [one.place.line for one in found.locations if one.remark == "leads there"]
    assert leading == [7, 8]
