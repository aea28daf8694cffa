"""What is cleared too early, never, or never averaged: who is told, and who is not."""

import pytest

from distdoctor.analysis.gradients.ddp_averaging import unreduced
from distdoctor.analysis.optimizer_step.step_lines import assigning, clearing_in_vain
from distdoctor.catalogue import every_check
from distdoctor.examination.examining import verdict
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty, Finding, Sick
from distdoctor.model.run import Run


def finding_of(code: str, rank: str) -> Finding | None:
    (check,) = [one for one in every_check() if one.code == code]
    run = sketch(f"rank 0 | {rank} exit=0\nrank 1 | {rank} exit=0")
    found = verdict(run, check)
    return found.findings[0] if isinstance(found, Sick) else None


# --- never cleared ---

FIRST = "cycle(step=1,words=backward+step)@t.py:9 "


def test_the_norm_that_grows_is_told() -> None:
    found = finding_of(
        "DD507",
        "gradients(step=1,norms=3.0+4.0) gradients(step=8,norms=30.0+40.0)"
        " gradients(step=9,norms=-1.0+4.0) "
        + FIRST
        + "cycle(step=2,words=backward+step,more=6)@t.py:9",
    )
    assert found is not None
    assert found.certainty is Certainty.PROVED
    assert "at 7 of 8 steps" in found.message
    assert "5 at step 1, 50 at step 8" in found.message


def test_what_is_cleared_once_in_an_epoch_may_be_on_purpose() -> None:
    epoch = "cycle(words=clear+backward+step)@t.py:9 cycle(words=backward+step,more=5) "
    found = finding_of("DD507", FIRST + epoch * 3)
    assert found is not None
    assert found.certainty is Certainty.LIKELY


@pytest.mark.parametrize(
    "rank",
    [
        FIRST + "cycle(step=2,words=backward+step,more=1)@t.py:9",
        "cycle(words=step,more=9)@t.py:9",
        FIRST + "cycle(step=2,words=spare+clear+backward+step,more=9)@t.py:9",
        FIRST + "cycle(step=2,words=changed+step,more=9)@t.py:9",
        FIRST
        + "cycle(words=backward+step)@t.py:9 cycle(words=clear+backward+step)@t.py:9 "
        * 4,
    ],
    ids=["few steps", "closures", "two players", "put there by hand", "every other"],
)
def test_gradients_that_are_used_so_on_purpose_are_not_accused(rank: str) -> None:
    assert finding_of("DD507", rank) is None


def test_lines_that_clear_nothing_are_found_in_the_source() -> None:
    text = "a.zero_grad()\nb.zero_()\np.grad = None\np.x = None\nd.sync = False\n"
    drawn = sketch("rank 0 | act(word=clear)@t.py:1")
    run = Run.of_events(
        {0: [event for _, event in drawn.life[0]]}, sources={"t.py": text, "u.py": "("}
    )
    assert [place.line for place in clearing_in_vain(run)] == [2, 3]
    assert [place.line for place in assigning(run, "sync")] == [5]


# --- cleared within a window ---


def test_what_is_lost_is_counted() -> None:
    found = finding_of(
        "DD503",
        "cycle(words=2:backward.drop+backward+step,batches=3)@t.py:9"
        " cycle(words=clear+2:backward.drop+backward+step,batches=3,more=3)@t.py:9",
    )
    assert found is not None
    assert found.certainty is Certainty.PROVED
    assert "at 5 of 5 steps" in found.message
    assert "of 15 backward passes, 10 are lost, and 5 are stepped with" in found.message


@pytest.mark.parametrize(
    "rank",
    [
        "cycle(words=clear+backward+drop+backward+step,more=1)@t.py:9",
        "cycle(words=clear+5:backward+drop+5:backward+step)@t.py:9"
        " cycle(words=clear+5:backward+step,more=9)@t.py:9",
        "cycle(words=clear+9:backward+drop)@t.py:9"
        " cycle(words=clear+backward+step,more=9)@t.py:9",
        "cycle(words=clear+scaled+unscale+drop+scaled+unscale+scaled_step,more=9)",
    ],
    ids=["twice only", "once", "a warm-up", "not finite"],
)
def test_passes_that_are_dropped_for_a_reason_are_not_accused(rank: str) -> None:
    assert finding_of("DD503", rank) is None


# --- averaged too seldom ---

RANK = (
    "wrap=ddp:w trained(names=w,numels=4,wrapped) optimised{more}"
    " weights(prints=7,step=1,gradients={g}1) weights(prints={w},step=2,gradients={g}2)"
    " {cycles} exit=0"
)


def parted(cycles: str, second: str = "", more: str = "") -> Run:
    """Two ranks, whose weights differ behind the first step."""
    one = RANK.format(g=1, w=8, cycles=cycles, more=more)
    other = RANK.format(g=2, w=9, cycles=second or cycles, more=more)
    return sketch(f"rank 0 | {one}\nrank 1 | {other}")


ALL = "cycle(step=1,words=3:backward/local+step,more=5)@t.py:9"


def test_steps_with_gradients_of_one_rank_explain_the_drift() -> None:
    (found,) = unreduced(parted(ALL))
    assert (found.steps, found.sync_disabled, found.parting.step) == (6, True, 2)


def test_a_second_backward_for_one_forward_pass_is_not_averaged() -> None:
    (found,) = unreduced(parted("cycle(step=1,words=backward+backward/bare+step)"))
    assert not found.sync_disabled


@pytest.mark.parametrize(
    "cycles",
    [
        "cycle(step=1,words=2:backward/local+backward+step,more=5)",
        "cycle(step=1,words=3:backward/local+exchange+changed+step,more=5)",
        "cycle(step=1,words=backward/bare+step,more=5)",
        "cycle(step=1,words=backward+step) cycle(step=3,words=backward/local+step)",
        "cycle(step=1,words=scaled/local+skip,more=5)",
    ],
    ids=["outside", "by hand", "passed by", "parted before", "skipped"],
)
def test_a_drift_that_something_else_explains_is_not_accused(cycles: str) -> None:
    assert list(unreduced(parted(cycles))) == []


def test_all_replicas_must_have_done_so() -> None:
    averaged = "cycle(step=1,words=backward+step,more=5)"
    assert list(unreduced(parted(ALL, averaged))) == []


def test_steps_of_several_optimizers_are_counted_apart() -> None:
    late = ALL.replace("step=1", "step=3")
    assert list(unreduced(parted(late))) == []
    (found,) = unreduced(parted(late, more=" optimised"))
    assert found.steps == 6


def test_replicas_that_are_alike_may_be_averaged_in_any_way() -> None:
    one = RANK.format(g=1, w=8, cycles=ALL, more="")
    assert list(unreduced(sketch(f"rank 0 | {one}\nrank 1 | {one}"))) == []


# --- averaged too often ---

HELD = "wrap=ddp:w holds(names=w,sizes=4,averaged=0) "


def test_what_is_sent_for_nothing_is_counted() -> None:
    found = finding_of(
        "DD506",
        HELD + "cycle(words=4:backward+step,size_bytes=1048576)@t.py:9"
        " cycle(words=clear+4:backward+step,size_bytes=1048576,more=30)@t.py:9",
    )
    assert found is not None
    assert "at 32 of 32 steps: 3 of 4 times, 3 MiB a step" in found.message


@pytest.mark.parametrize(
    "rank",
    [
        HELD + "cycle(words=clear+4:backward+step,more=6)",
        "wrap=ddp:w holds(names=w,sizes=4) cycle(words=clear+2:backward+step,more=30)",
        "holds(names=w,sizes=4,averaged=0) cycle(words=clear+2:backward+step,more=30)",
        HELD + "cycle(words=clear+2:backward+step,more=20)"
        " cycle(words=clear+backward+step,more=20)",
        HELD + "cycle(words=clear+backward+exchange+backward+step,more=30)",
        HELD + "cycle(words=spare+clear+backward+step,more=30)",
        HELD + "cycle(words=clear+backward+backward/bare+step,more=30)",
    ],
    ids=[
        "few",
        "not averaged",
        "not wrapped",
        "some",
        "exchanged",
        "two players",
        "not sent",
    ],
)
def test_what_could_not_be_spared_is_not_told(rank: str) -> None:
    assert finding_of("DD506", rank) is None
