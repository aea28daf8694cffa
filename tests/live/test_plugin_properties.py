"""Hypothesis on ranks: all of them try the same, and failures shrink."""

import re

import plugin_sessions as sessions
import pytest
from plugin_sessions import Session

TESTS = """\
import pytest, torch
import torch.distributed as dist
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.ranks(2)
tried = []

@settings(max_examples=50, deadline=1)
@given(n=st.integers(0, 1000), x=st.floats(0, 1))
def test_holds(n, x, rank, tmp_path):
    assume(n != 3)
    mine = torch.tensor([float(n), x], dtype=torch.float64)
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    assert torch.equal(mine, theirs)
    tried.append(n)

def test_many_were_tried():
    assert len(tried) >= 40

@given(n=st.integers(0, 1000))
def test_fails(n, rank):
    dist.barrier()
    assert n < 10 or rank == 0

@settings(max_examples=20)
@given(n=st.integers(0, 2))
def test_hangs(n, rank):
    if n == 2 and rank == 1:
        return
    dist.barrier()

@given(data=st.data())
def test_draws_inside(data):
    pass

class TestClass:
    @example(n=2)
    @given(n=st.integers(0, 3))
    def test_method(self, n):
        assert isinstance(self, TestClass)

def test_after(rank):
    dist.barrier()
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """All of these in one session."""
    return sessions.run(
        tmp_path_factory.mktemp("properties"),
        TESTS,
        "--hypothesis-seed=7",
        # A hang that nothing proves is then told by the plugin, and not by the session.
        config="distdoctor_timeout = 60\n",
    )


@pytest.mark.parametrize(
    "name", ["test_holds", "test_many_were_tried", "test_method", "test_after"]
)
def test_what_holds_passes(session: Session, name: str) -> None:
    assert session.tests[name].outcome == "passed", session.output


def part_of(session: Session, name: str) -> str:
    """What is printed of the failure of a test."""
    return session.output.partition(f"_ {name} _")[2].partition("\n____")[0]


def test_a_failure_shrinks_and_is_the_ranks_own(session: Session) -> None:
    reported = session.tests["test_fails"]
    assert reported.outcome == "failed"
    assert reported.message == "assert (10 < 10 or 1 == 0)"
    assert "rank 1 failed; rank 0 did not fail" in reported.text
    assert re.search(r"test_fails\(\s*rank=\.\.\.,\s*n=10,?\s*\)", reported.text)


def test_a_hang_is_a_failure_for_the_engine(session: Session) -> None:
    reported = session.tests["test_hangs"]
    assert reported.outcome == "failed"
    assert reported.message.startswith("DD108 skipped collective: rank 1")
    assert "n=2" in part_of(session, "test_hangs")


def test_what_is_drawn_inside_is_refused(session: Session) -> None:
    reported = session.tests["test_draws_inside"]
    assert reported.outcome == "error"
    assert "draw all arguments by @given" in reported.text


def test_no_process_is_left(session: Session) -> None:
    assert session.left == []
