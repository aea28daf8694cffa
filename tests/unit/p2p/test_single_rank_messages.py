"""Messages of which the source has something for one rank alone, from drawings."""

from dataclasses import replace
from inspect import cleandoc

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty


def divergence_of(drawing: str, source: str) -> Divergence:
    run = replace(sketch(drawing), sources={"t.py": cleandoc(source)})
    (found,) = divergences(run)
    return found


def test_who_alone_is_kept_from_its_send_left_it_out() -> None:
    found = divergence_of(
        """
        rank 0 | barrier@t.py:6...
        rank 1 | recv(4,peer=0)@t.py:5...
        """,
        """
        rank = get_rank()
        if rank == 0 and rank != 0:
            send(x, dst=1)
        if rank == 1:
            recv(x, src=0)
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.UNANSWERED, (0,))
    assert found.certainty is Certainty.LIKELY


def test_a_wait_for_anybody_is_no_proof_against_who_waits_elsewhere() -> None:
    found = divergence_of(
        """
        rank 0 | recv_any(4)@t.py:4  recv_any(4)@t.py:4...
        rank 1 | send(4,peer=0)@t.py:7  barrier@t.py:9...
        rank 2 | recv(4,peer=0)@t.py:8...
        """,
        """
        rank = get_rank()
        if rank == 0:
            for _ in range(2):
                recv(x)
        else:
            if rank != 2:
                send(x, dst=0)
                recv(x, src=0) if rank == 2 else None
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.UNANSWERED, (2,))
    assert found.elsewhere[0].place.line == 6


def test_a_tag_given_by_one_branch_for_one_rank_is_its_fault() -> None:
    found = divergence_of(
        """
        rank 0 | send(4,peer=1)@t.py:9  barrier@t.py:10...
        rank 1 | recv(4,peer=0,tag=7)@t.py:4...
        """,
        """
        rank = get_rank()
        if rank > 0:
            if rank == 1:
                recv(x, src=rank - 1, tag=7)
            else:
                recv(x, src=rank - 1)

        if rank < last:
            send(x, dst=rank + 1)
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.MISFIT, (1,))
    assert found.elsewhere[0].place.line == 3


def test_two_of_three_whose_tags_differ_are_both_named() -> None:
    found = divergence_of(
        """
        rank 0 | send(4,peer=1,tag=2)@t.py:3  barrier@t.py:6...
        rank 1 | recv(4,peer=0,tag=3)@t.py:5...
        rank 2 | barrier@t.py:6...
        """,
        """
        rank = get_rank()
        if rank == 0:
            send(x, dst=1, tag=sent)
        if rank == 1:
            recv(x, src=0, tag=received)
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.MISFIT, (0, 1))


def test_a_ring_that_rank_0_begins_singles_out_nobody() -> None:
    found = divergence_of(
        """
        rank 0 | recv(4,peer=2)@t.py:5...
        rank 1 | recv(4,peer=0)@t.py:8...
        rank 2 | recv(4,peer=1)@t.py:8...
        """,
        """
        rank = get_rank()
        before = rank - 1 if rank > 0 else size - 1
        after = (rank + 1) % get_world_size()
        if rank == 0:
            recv(x, before)
            send(x, after)
        else:
            recv(x, before)
            send(x, after)
        """,
    )
    assert (found.why, found.culprits) == (Cause.MESSAGES, ())


def test_a_peer_that_one_rank_numbers_otherwise_is_its_fault() -> None:
    found = divergence_of(
        """
        rank 0 | recv_any(4)@t.py:3  recv_any(4)@t.py:3...
        rank 1 | send(4,peer=0)@t.py:5  barrier@t.py:6...
        rank 2 | send(4,peer=1)@t.py:5...
        """,
        """
        rank = get_rank()
        if rank == 0:
            recv(x)
        else:
            send(x, dst=1 if rank == 2 else 0)
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.UNANSWERED, (2,))
    assert found.elsewhere[0].place.line == 5


def test_of_a_hub_and_one_that_it_serves_the_one_is_at_fault() -> None:
    found = divergence_of(
        """
        rank 0 | recv(4,peer=1)@t.py:3  recv(4,peer=2)@t.py:3  exit=0
        rank 1 | send(4,peer=0)@t.py:5  exit=0
        rank 2 | send(5,peer=0)@t.py:5  exit=0
        """,
        """
        if get_rank() == 0:
            for peer in range(1, size):
                recv(room, src=peer)
        else:
            send(rows, dst=0)
        """,
    )
    assert (found.why, found.culprits) == (Cause.MISFIT, (2,))


def test_a_circle_in_one_branch_names_the_branch_and_what_it_asks_for() -> None:
    found = divergence_of(
        """
        rank 0 | recv(4,peer=1)@t.py:5...
        rank 1 | recv(4,peer=0)@t.py:5...
        """,
        """
        def colour():
            return (get_rank() // 2) % 2
        def shift(x):
            if colour() == 0:
                recv(x, other)
                send(x, other)
            else:
                send(x, other)
                recv(x, other)
        """,
    )
    assert found.why is Cause.MESSAGES
    assert [line.place.line for line in found.elsewhere] == [4, 2]


def test_a_message_to_oneself_is_refused_and_told() -> None:
    found = divergence_of(
        """
        rank 0 | send(4,peer=1)@t.py:2  barrier@t.py:4...
        rank 1 | recv(4,peer=1)@t.py:3^  exit=1
        """,
        "",
    )
    assert (found.why, found.culprits) == (Cause.STRANGER, (1,))
    assert "names itself" in sentence(found)


def test_tags_that_fit_are_not_looked_at() -> None:
    found = divergence_of(
        """
        rank 0 | send(4,peer=1,tag=2)@t.py:3  barrier@t.py:6...
        rank 1 | recv(8,peer=0,tag=2)@t.py:5  barrier@t.py:6...
        """,
        """
        rank = get_rank()
        if rank == 0:
            send(x, dst=1, tag=2 if rank == 0 else 1)
        else:
            recv(x, src=0, tag=1 if rank == 0 else 2)
        barrier()
        """,
    )
    assert (found.why, found.culprits) == (Cause.MISFIT, ())


def test_the_hub_has_a_peer_of_its_own_and_so_has_each_of_two() -> None:
    source = """
        peer = 1 if get_rank() == 0 else 0
        recv(x, src=peer)
        send(x, dst=peer)
        """
    two = "rank 0 | recv(4,peer=1)@t.py:2...\nrank 1 | recv(4,peer=0)@t.py:2..."
    assert divergence_of(two, source).culprits == ()
    assert (
        divergence_of(f"{two}\nrank 2 | recv(4,peer=0)@t.py:2...", source).culprits
        == ()
    )


def test_an_end_of_a_pipeline_is_not_kept_from_what_it_has_no_part_in() -> None:
    found = divergence_of(
        """
        rank 0 | send(4,peer=1)@t.py:6  recv(4,peer=1)@t.py:8...
        rank 1 | recv(4,peer=0)@t.py:3  recv(4,peer=0)@t.py:3...
        """,
        """
        def run(stage):
            if not stage.first:
                recv(x, src=stage.before)
                send(gradient, dst=stage.before)
            if not stage.last:
                send(x, dst=stage.after)
            if not stage.last:
                recv(gradient, src=stage.after)
        stage = Stage(first=get_rank() == 0, last=get_rank() == size - 1)
        run(stage)
        """,
    )
    assert 0 not in found.culprits or "alone" not in sentence(found)
