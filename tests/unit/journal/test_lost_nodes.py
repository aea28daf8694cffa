"""Ranks of nodes that were lost while a job was recorded: which of them count."""

import time
from pathlib import Path

import pytest

from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import LostNode, Manifest
from distdoctor.journal.format import RecordKind, offset_of
from distdoctor.journal.lost_nodes import left_behind
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.run import Run

A = LostNode(host="a", why="w", pids=[1, 2], told_ns=100)
B = LostNode(host="b", why="w", pids=[3], told_ns=200)


def manifest(*lost: LostNode, recorded: bool = True) -> Manifest:
    return Manifest(
        distdoctor="0",
        launch=[],
        directory=".",
        recorded=recorded,
        lost_nodes=list(lost),
        exit_code=0,
    )


@pytest.mark.parametrize(
    ("last_ns", "pids"),
    [
        ({1: 90, 2: 95, 3: 80, 9: 99}, set()),  # nobody went on
        ({1: 90, 2: 95, 3: 80, 9: 101}, {1, 2}),
        ({1: 90, 2: 95, 3: 150, 9: 99}, {1, 2}),  # of another lost node
        ({1: 90, 2: 95, 3: 150, 9: 201}, {1, 2, 3}),
        ({1: 90, 2: 250, 3: 80}, {3}),
        ({}, set()),
    ],
)
def test_ranks_count_unless_others_went_on(
    last_ns: dict[int, int], pids: set[int]
) -> None:
    assert set(left_behind(manifest(A, B), last_ns)) == pids


def test_a_job_that_was_ended_with_its_node_keeps_all_ranks() -> None:
    assert left_behind(manifest(A, recorded=False), {1: 1, 9: 500}) == {}


NODES_PID = 1 << 22


def recorded(folder: Path, *, told_later: bool) -> Run:
    """A record of two ranks: the node of rank 1 has told up to its last record, or all.

    Rank 0 is here, and has written behind that.
    """
    for rank in (1, 0):
        writer = JournalWriter(folder, rank, 2, 64 * 1024)
        writer.put(RecordKind.BATCH, 5, ordinal=1)
        if rank == 1:
            told_ns = time.monotonic_ns()
            with writer.path.open("r+b") as file:
                file.seek(offset_of("pid"))
                file.write(NODES_PID.to_bytes(4, "little"))
    if told_later:
        told_ns = time.monotonic_ns()
    lost = LostNode(host="b", why="silence", pids=[NODES_PID], told_ns=told_ns)
    return assemble(folder, manifest(lost))


def test_a_rank_that_others_went_on_without_is_unseen(tmp_path: Path) -> None:
    run = recorded(tmp_path, told_later=False)
    assert sorted(run.life) == [0]
    assert "its node b was lost while other ranks went on: silence" in run.unseen[1]


def test_a_rank_that_nobody_went_on_without_is_seen_in_part(tmp_path: Path) -> None:
    run = recorded(tmp_path, told_later=True)
    assert sorted(run.life) == [0, 1]
    assert run.partial == {1: "its node b was lost: silence"}
