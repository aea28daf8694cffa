"""Wrong peers of messages, and circles that their order alone closes."""

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch


def found(drawing: str) -> Divergence:
    (divergence,) = divergences(sketch(drawing))
    return divergence


def test_who_alone_receives_from_the_next_one_has_the_wrong_peer() -> None:
    divergence = found("""
        rank 0 | send(peer=1)@t:8&...issued  recv(peer=3)@t:9    send(peer=1)@t:8...
        rank 1 | send(peer=2)@t:8&...issued  recv(peer=0)@t:9    recv(peer=0)@t:9...
        rank 2 | send(peer=3)@t:8&...issued  recv(peer=3)@t:9... .
        rank 3 | send(peer=0)@t:8&...issued  recv(peer=2)@t:9    recv(peer=2)@t:9...
    """)
    assert (divergence.why, divergence.culprits) == (Cause.UNANSWERED, (2,))
    assert "the one before" in sentence(divergence)


def test_who_alone_sends_two_further_has_the_wrong_peer() -> None:
    divergence = found("""
        rank 0 | send(peer=2)@t:8+&...issued  recv(peer=1)@t:8+...
        rank 1 | send(peer=2)@t:8+&...issued  recv(peer=0)@t:8+...
        rank 2 | send(peer=3)@t:8+&...issued  recv(peer=1)@t:8+    recv(peer=3)@t:9...
        rank 3 | send(peer=0)@t:8+...         recv(peer=2)@t:8+&...issued
    """)
    assert (divergence.why, divergence.culprits) == (Cause.UNANSWERED, (0,))


def test_batches_in_which_no_two_sides_meet_are_no_fault_of_order() -> None:
    divergence = found("""
        rank 0 | send(4,peer=1)@t:8+...  recv(4,peer=1)@t:8+&...issued
        rank 1 | send(4,peer=2)@t:8+...  recv(4,peer=2)@t:8+&...issued
        rank 2 | send(4,peer=0)@t:8+...  recv(4,peer=0)@t:8+&...issued
    """)
    assert (divergence.why, divergence.culprits) == (Cause.UNANSWERED, ())


def test_a_last_stage_that_sends_on_to_the_first_is_at_fault() -> None:
    divergence = found("""
        rank 0 | send(4,peer=1)@t:8  recv(4,peer=1)@t:9...
        rank 1 | recv(4,peer=0)@t:7  send(4,peer=2)@t:8  recv(4,peer=2)@t:9...
        rank 2 | recv(4,peer=1)@t:7  send(4,peer=0)@t:8...
    """)
    assert (divergence.why, divergence.culprits) == (Cause.UNANSWERED, (2,))


def test_one_that_never_sends_because_it_sent_to_another_is_at_fault() -> None:
    divergence = found("""
        rank 0 | recv(4,peer=1)@t:5  recv(4,peer=2)@t:5...  .
        rank 1 | send(4,peer=0)@t:8  barrier@t:9...         .
        rank 2 | send(4,peer=3)@t:8&...issued  barrier@t:9...
        rank 3 | send(4,peer=0)@t:8&...issued  barrier@t:9...
    """)
    assert (divergence.why, divergence.culprits) == (Cause.UNANSWERED, (2,))
    assert any("another peer" in location.remark for location in divergence.elsewhere)


@pytest.mark.parametrize(
    "drawing",
    [
        # All send first.
        """
        rank 0 | send(4,peer=1)@t:8...
        rank 1 | send(4,peer=2)@t:8...
        rank 2 | send(4,peer=0)@t:8...
        """,
        # Two neighbours receive first.
        """
        rank 0 | recv(4,peer=1)@t:5...
        rank 1 | recv(4,peer=0)@t:7...
        """,
        # The others of a star name rank 0, and rank 0 names them.
        """
        rank 0 | send(4,peer=1)@t:8...
        rank 1 | send(4,peer=0)@t:8...
        rank 2 | send(4,peer=0)@t:8...
        """,
        # Each waits for its reply before it serves a request.
        """
        rank 0 | send(4,peer=1)@t:8&...issued  recv(4,peer=1)@t:9...
        rank 1 | send(4,peer=2)@t:8&...issued  recv(4,peer=2)@t:9...
        rank 2 | send(4,peer=0)@t:8&...issued  recv(4,peer=0)@t:9...
        """,
    ],
)
def test_right_peers_in_the_wrong_order_are_a_circle(drawing: str) -> None:
    assert found(drawing).why is Cause.MESSAGES
