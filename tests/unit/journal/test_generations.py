"""Ranks that are started several times: who belongs together, and what is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import examine, together
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind, offset_of
from distdoctor.journal.generations import generations
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.journal.texts import Tables
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Sick
from distdoctor.probes.collectives.board import Board, NoBoard, board_of

NOBODY = 2**22 + 1  # above the largest number of a process


class Job:
    """Writes journals as processes would that are started one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pid = folder, NOBODY

    def begins(self, rank: int, size: int) -> JournalWriter:
        """A rank's process, which joins."""
        writer = JournalWriter(self.folder, rank, size, 64 * 1024)
        self.pid += 1
        with writer.path.open("r+b") as file:
            file.seek(offset_of("pid"))
            file.write(self.pid.to_bytes(4, "little"))
        note = '{"what": "started", "world_size": 1, "backend": "", "torch": "", '
        spec = writer.intern(note + '"device": ""}')
        writer.put(RecordKind.LIFE, spec=spec)
        return writer

    def start(self, size: int, first: int = 0) -> None:
        """Ranks that do their work and end, one of them a little before the others."""
        ranks = [(first + n) % size for n in range(size)]
        for writer in [self.begins(rank, size) for rank in ranks]:
            writer.put(RecordKind.LIFE, spec=writer.intern('{"what": "leave"}'))
            writer.end()

    def journals(self) -> list[list[str]]:
        """The names of journals, by generation."""
        parts = generations(self.folder)
        return [[path.name.removesuffix(".journal") for path in part] for part in parts]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_ranks_that_are_started_once_are_one_generation(job: Job) -> None:
    job.start(3)
    assert job.journals() == [["rank-0.0", "rank-1.0", "rank-2.0"]]


def test_each_start_is_a_generation(job: Job) -> None:
    for _ in range(3):
        job.start(2)
    assert job.journals() == [[f"rank-0.{n}", f"rank-1.{n}"] for n in range(3)]


@pytest.mark.parametrize("first", [0, 1])
def test_starts_may_differ_in_their_number_of_ranks(job: Job, first: int) -> None:
    for size in (1, 3, 2, 3):
        job.start(size, first)
    assert job.journals() == [
        ["rank-0.0"],
        ["rank-0.1", "rank-1.0", "rank-2.0"],
        ["rank-0.2", "rank-1.1"],
        ["rank-0.3", "rank-1.2", "rank-2.1"],
    ]


def test_a_rank_started_anew_alone_joins_those_that_go_on(job: Job) -> None:
    first = job.begins(0, 2)
    job.begins(1, 2)
    job.begins(1, 2)
    first.put(RecordKind.LIFE, spec=first.intern('{"what": "start", "world_size": 2}'))
    assert job.journals()[-1] == ["rank-0.0", "rank-1.1"]


def test_a_rank_that_left_in_order_is_not_dead_in_the_next_start(job: Job) -> None:
    job.start(2)
    job.begins(0, 2)
    manifest = Manifest(distdoctor="0", launch=[], directory="/job", alive=[job.pid])
    run = assemble(job.folder, manifest)
    assert (run.world_size, run.seen, list(run.unseen)) == (2, [0], [1])


def test_more_ranks_than_before_are_another_start_also_while_some_have_not_come(
    job: Job,
) -> None:
    job.start(1)
    job.begins(1, 4)
    job.begins(2, 4)
    assert job.journals() == [["rank-0.0"], ["rank-1.0", "rank-2.0"]]


def test_ranks_of_one_start_may_be_told_different_sizes(job: Job) -> None:
    for rank, size in enumerate((2, 3, 2)):
        job.begins(rank, size)
    assert job.journals() == [["rank-0.0", "rank-1.0", "rank-2.0"]]


def test_a_group_is_the_same_however_often_its_members_were_started() -> None:
    tables = Tables("/job")
    mine, theirs, later = (
        tables.group(group_text("0", "", often, (0, 1)))
        for often in (3 * OFTEN, OFTEN, OFTEN + 1)
    )
    assert mine == theirs
    assert mine != later


def test_after_a_start_of_another_size_no_board_is_read(job: Job) -> None:
    job.start(2)
    job.start(2)
    assert isinstance(board_of(job.folder, "a", 2, 0, 0, 2), Board)
    assert isinstance(board_of(job.folder, "a", 3, 0, 0, 3), NoBoard)


SICK = """
rank 0 | start=2  all_reduce(4)@t.py:7  leave@t.py:9  exit=0
rank 1 | start=2  all_reduce(4)@t.py:7  leave@t.py:9  exit=134
"""
WELL = SICK.replace("134", "0")


def test_what_is_found_at_an_earlier_start_is_told_with_it() -> None:
    checks = every_check()
    early, last = (examine(sketch(text), checks) for text in (SICK, WELL))
    (sick,) = (one for one in together(last, [early, last]) if isinstance(one, Sick))
    (finding,) = sick.findings
    assert finding.message.endswith("(at start 1 of 3 of the ranks).")
    assert finding.details["start"] == 1


def test_what_is_found_at_each_start_is_told_once() -> None:
    checks = every_check()
    verdicts = examine(replace(sketch(SICK), steps={0: 1, 1: 1}), checks)
    (sick,) = (one for one in together(verdicts, [verdicts]) if isinstance(one, Sick))
    assert len(sick.findings) == 1
    assert "start" not in sick.findings[0].details


def test_a_rank_that_left_is_not_of_a_smaller_job_that_goes_on(job: Job) -> None:
    leaver = [job.begins(rank, 3) for rank in range(3)][2]
    for rank in range(2):
        job.begins(rank, 2)
    leaver.put(RecordKind.LIFE, spec=leaver.intern('{"what": "leave"}'))
    leaver.end()  # after the others have begun anew
    assert job.journals() == [
        ["rank-0.0", "rank-1.0", "rank-2.0"],
        ["rank-0.1", "rank-1.1"],
    ]
