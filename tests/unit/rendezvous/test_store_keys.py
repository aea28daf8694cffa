"""Keys of the store that the rank which set those before did not set."""

from dataclasses import replace
from textwrap import dedent

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty

BARRIER = "barrier@t.py:9"

SOURCE = dedent("""
    def publish(n, score):
        if score < best:
            store.set(f"round/{n}", "x")
    def rounds():
        for n in range(9):
            publish(n, score())
            store.get(f"round/{n}")
            dist.barrier()
""")


def only(drawing: str, source: str = "") -> Divergence:
    run = sketch(f"{drawing}\nnobody else")
    (divergence,) = divergences(
        replace(run, sources={"t.py": source} if source else {})
    )
    assert divergence.why is Cause.KEY
    assert divergence.certainty is Certainty.LIKELY
    return divergence


def sets(*keys: str) -> str:
    return "  ".join(f"store_set(names={key})@t.py:4  {BARRIER}" for key in keys)


def gets(*keys: str) -> str:
    return "  ".join(f"store_wait(names={key})@t.py:8  {BARRIER}" for key in keys)


def waits(key: str) -> str:
    return f"store_wait(names={key})@t.py:8...inside"


def test_who_set_the_keys_before_is_the_culprit_once_it_has_come_by() -> None:
    divergence = only(
        f"rank 0 | {sets('r1', 'r2')}  {BARRIER}...\n"
        f"rank 1 | {gets('r1', 'r2')}  {waits('r3')}",
        SOURCE,
    )
    assert (divergence.culprits, divergence.victims) == ((0,), (1,))
    assert [location.place.line for location in divergence.elsewhere] == [4, 3]


def test_who_has_ended_has_come_by() -> None:
    divergence = only(
        f"rank 0 | {sets('r1')}  leave  exit=0\nrank 1 | {gets('r1')}  {waits('r2')}"
    )
    assert divergence.culprits == (0,)


def test_of_one_key_a_branch_tells_that_it_may_be_left_out() -> None:
    drawing = (
        f"rank 0 | {sets('r1')}  {BARRIER}...\nrank 1 | {gets('r1')}  {waits('r2')}"
    )
    assert only(drawing, SOURCE).culprits == (0,)
    assert only(drawing).culprits == ()
    assert only(drawing, SOURCE.replace("if score < best", "with x")).culprits == ()


@pytest.mark.parametrize(
    "drawing",
    [
        # The waiter has gone on too far: the setter waits for it before it sets.
        f"rank 0 | {sets('r1', 'r2').removesuffix(BARRIER)} {BARRIER}...\n"
        f"rank 1 | {gets('r1', 'r2').removesuffix(BARRIER)} {waits('r3')}",
        # Each rank has a key of its own.
        f"rank 0 | {sets('w0')} leave exit=0\nrank 1 | {gets('w0')} {waits('w2')}\n"
        f"rank 2 | {BARRIER} leave exit=0",
        f"rank 0 | {sets('w0.0', 'w0.1')} leave exit=0\n"
        f"rank 1 | {gets('w0.0', 'w0.1')} {waits('w2.0')}\n"
        f"rank 2 | {BARRIER} {BARRIER} leave exit=0",
        # Several have set such keys.
        f"rank 0 | {sets('r1')} {BARRIER} leave exit=0\n"
        f"rank 1 | {gets('r1')} {gets('r2')} {waits('r3')}\n"
        f"rank 2 | {BARRIER} {sets('r2')} leave exit=0",
        # The key before was got elsewhere.
        f"rank 0 | {sets('r1')} leave exit=0\n"
        f"rank 1 | {gets('r1').replace('py:8', 'py:6')} {waits('r2')}",
        # Another kind of key.
        f"rank 0 | {sets('r1')} leave exit=0\nrank 1 | {gets('r1')} {waits('r_2')}",
    ],
)
def test_otherwise_nobody_is_named(drawing: str) -> None:
    assert only(drawing, SOURCE).culprits == ()


def test_who_has_set_a_later_key_has_come_by() -> None:
    ahead = f"{sets('r1', 'r3').removesuffix(BARRIER)} {BARRIER}..."
    drawing = f"rank 0 | {ahead}\nrank 1 | {gets('r1').removesuffix(BARRIER)} "
    assert only(f"{drawing}{waits('r2')}").culprits == (0,)
    assert only(f"{drawing}{waits('r4')}").culprits == ()
