"""The progress: when ranks are worth a closer look."""

from pathlib import Path

import pytest

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import HEADER_BYTES, RecordKind
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch import progress as module
from distdoctor.launch.progress import Progress, RankProgress


def note(writer: JournalWriter, what: str) -> None:
    writer.put(
        RecordKind.LIFE, 1, spec=writer.intern(f'{{"what": "{what}", "step": 3}}')
    )


@pytest.mark.parametrize(
    ("lives", "leaving"),
    [
        ([["start", "leave"], ["start", "leave"]], 2),
        ([["start", "leave", "batch"], ["leave"]], 2),
        ([["start", "leave"], ["start"]], 0),
        ([["start", "leave", "start"], ["leave"]], 0),
        ([["start"], []], 0),
    ],
)
def test_ranks_are_leaving_once_all_have_left_the_job(
    tmp_path: Path, lives: list[list[str]], leaving: int
) -> None:
    progress = Progress(tmp_path)
    for rank, life in enumerate(lives):
        writer = JournalWriter(tmp_path, rank, len(lives), 64 * 1024)
        for what in life:
            note(writer, what)
    progress.discover()
    progress.update()
    assert len(progress.leaving()) == leaving


@pytest.mark.parametrize(
    ("lives", "blocked", "left_over"),
    [
        ("-+", "", [1]),
        ("--+", "", [2]),
        ("-++", "", [1, 2]),
        ("++", "", []),  # nobody has ended
        ("-++", "2", []),  # one waits, perhaps for the other
    ],
)
def test_ranks_are_left_over_once_all_others_have_ended(
    tmp_path: Path, lives: str, blocked: str, left_over: list[int]
) -> None:
    progress = Progress(tmp_path, lambda one: lives[one.rank] == "-")
    for rank in range(len(lives)):
        writer = JournalWriter(tmp_path, rank, len(lives), 64 * 1024)
        group, calls = writer.intern("world"), writer.intern("all_reduce")
        writer.put(RecordKind.ENTER, 1, group, 1, spec=calls)
        if str(rank) not in blocked:
            writer.put(RecordKind.RETURN, 1, group, 1, spec=calls)
    progress.discover()
    progress.update()
    progress.bury(1)
    assert [one.rank for one in progress.left_over()] == left_over


@pytest.mark.parametrize("size", [0, 5, HEADER_BYTES, 64 * 1024])
def test_a_journal_that_is_finished_while_it_is_looked_at_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = JournalWriter(tmp_path, 0, 1, 64 * 1024).path
    whole = path.read_bytes()
    path.write_bytes(bytes(size))

    def read_too_early(path: Path) -> RankProgress:
        path.write_bytes(whole)
        raise JournalUnreadable("its header was not there yet")

    progress = Progress(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "RankProgress", read_too_early)
        progress.discover()
    path.write_bytes(whole)
    progress.discover()
    assert [rank.rank for rank in progress.living()] == [0]


def test_a_damaged_journal_is_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = JournalWriter(tmp_path, 0, 1, 64 * 1024).path
    path.write_bytes(b"no journal" * 1000)
    progress = Progress(tmp_path)
    progress.discover()
    looks: list[Path] = []
    monkeypatch.setattr(module, "RankProgress", looks.append)
    progress.discover()
    assert not progress.living()
    assert not looks
