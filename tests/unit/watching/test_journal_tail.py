"""The newest records of a journal, while it grows, is torn, cut or removed."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_records import JOURNAL_BYTES, WrittenRank

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import HEADER_BYTES, RecordKind
from distdoctor.journal.trimming import trim_record
from distdoctor.journal.writer import JournalWriter
from distdoctor.watching import journal_tail as module
from distdoctor.watching.journal_tail import JournalTail

PID = os.getpid()


def test_it_follows_what_is_written(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    rank.call()
    tail = JournalTail(rank.writer.path)
    assert tail.threads[PID].kind == RecordKind.WOKE
    rank.call("broadcast", "waiting", peer=1)
    assert tail.look()
    assert tail.threads[PID].kind == RecordKind.WAIT
    assert tail.threads[PID].ordinal == 2
    assert tail.calls == 2
    assert list(tail.reached.values()) == [2]
    assert tail.is_whole
    assert not tail.look()


def test_steps_are_news_without_a_record(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    tail = JournalTail(rank.writer.path)
    rank.writer.step()
    assert tail.look()
    assert tail.header.steps == 1


def test_of_many_records_the_newest_are_read(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    rank.call("barrier", group="1\nother\n0\n0-1")
    tail = JournalTail(rank.writer.path)
    assert len(tail.reached) == 1
    for _ in range(module.MOST_RECORDS):
        rank.call()
    tail.look()
    assert not tail.is_whole
    assert len(tail.reached) == 1  # what was passed over tells nothing any more
    assert [*tail.reached.values()] == [module.MOST_RECORDS]
    assert tail.calls == module.MOST_RECORDS + 1


def test_a_ring_that_goes_round_is_followed(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2, 16 * 1024)
    tail = JournalTail(rank.writer.path)
    for made in range(1, 400):
        rank.call()
        tail.look()
        assert tail.calls == made
        assert tail.threads[PID].kind == RecordKind.WOKE


def test_a_ring_that_went_round_meanwhile_is_not_whole(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2, 16 * 1024)
    tail = JournalTail(rank.writer.path)
    for _ in range(400):
        rank.call()
    tail.look()
    assert not tail.is_whole
    assert tail.calls == 400


def test_a_large_job_shares_what_is_read(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    tail = JournalTail(rank.writer.path)
    tail.share(1024)
    for _ in range(200):
        rank.call()
    tail.look()
    assert tail.calls == 200
    assert len(tail.recent) == module.MOST_OF_ALL // 1024


def test_a_record_that_is_being_written_waits_for_the_next_look(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    rank.call()
    rank.call("barrier", "waiting")
    tail = JournalTail(rank.writer.path)
    assert tail.calls == 2
    other = JournalTail.__new__(JournalTail)
    ring = HEADER_BYTES + tail.header.strings_bytes
    commit = _word(rank.writer.path, ring + 4 * 64, 0)
    other.__init__(rank.writer.path)  # type: ignore[misc]
    assert other.calls == 1
    _word(rank.writer.path, ring + 4 * 64, commit)
    other.look()
    assert other.calls == 2
    assert other.is_whole


def test_a_record_that_stays_torn_is_passed_over(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    for _ in range(3):
        rank.call()
    ring = HEADER_BYTES + JournalTail(rank.writer.path).header.strings_bytes
    _word(rank.writer.path, ring + 4 * 64, 0)
    tail = JournalTail(rank.writer.path)
    assert tail.calls == 1
    rank.call()
    tail.look()
    assert tail.calls == 4
    assert not tail.is_whole


def _word(path: Path, at: int, value: int) -> int:
    """Put a word into a file; the one that stood there."""
    with path.open("r+b") as file:
        before = int.from_bytes(os.pread(file.fileno(), 8, at), "little")
        os.pwrite(file.fileno(), value.to_bytes(8, "little"), at)
    return before


def test_a_journal_that_is_trimmed_meanwhile_is_read_on(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    rank.call()
    tail = JournalTail(rank.writer.path)
    rank.call("barrier")
    trim_record(tmp_path)
    tail.look()
    assert tail.calls == 2
    assert JournalTail(rank.writer.path).calls == 2  # first seen when it is over


def test_a_journal_that_goes_is_told(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    tail = JournalTail(rank.writer.path)
    rank.writer.path.unlink()
    with pytest.raises(FileNotFoundError):
        tail.look()


def test_another_journal_in_its_place_is_begun_anew(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    for _ in range(5):
        rank.call()
    tail = JournalTail(rank.writer.path)
    rank.writer.path.unlink()
    WrittenRank(tmp_path, 0, 2).call()
    tail.look()
    assert tail.calls == 1


def test_no_file_stays_open(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    before = len([*Path("/proc/self/fd").iterdir()])
    tails = [JournalTail(rank.writer.path) for _ in range(50)]
    assert len([*Path("/proc/self/fd").iterdir()]) <= before
    assert len(tails) == 50


def test_leaving_and_joining_again_are_seen(tmp_path: Path) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    rank.leave()
    tail = JournalTail(rank.writer.path)
    assert tail.has_left
    rank.writer.put(
        RecordKind.LIFE, PID, spec=rank.writer.intern('["Started",{"world_size":2}]')
    )
    tail.look()
    assert not tail.has_left


@pytest.mark.parametrize("bytes_left", [0, 7, 100, HEADER_BYTES - 1])
def test_a_file_that_is_cut_in_its_header_is_no_journal(
    tmp_path: Path, bytes_left: int
) -> None:
    rank = WrittenRank(tmp_path, 0, 2)
    data = rank.writer.path.read_bytes()[:bytes_left]
    path = tmp_path / "rank-1.0.journal"
    path.write_bytes(data)
    if bytes_left < 100:
        with pytest.raises(JournalUnreadable):
            JournalTail(path)
    else:
        assert JournalTail(path).calls == 0


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_torn_files_raise_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    rank = WrittenRank(folder, 0, 2, 32 * 1024)
    for op in ("all_reduce", "broadcast", "send", "barrier"):
        rank.call(op, data.draw(st.sampled_from(["done", "waiting", "entered"])))
    whole = bytearray(rank.writer.path.read_bytes())
    used = [HEADER_BYTES, JOURNAL_BYTES]
    for _ in range(data.draw(st.integers(0, 12))):
        at = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 120))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    path = folder / "torn.journal"
    path.write_bytes(whole[:cut])
    try:
        tail = JournalTail(path)
        for _ in range(2):
            tail.look()
            tail.texts([1, 2, 3, 1 << 31])
    except JournalUnreadable:
        return
    assert len(tail.recent) <= module.MOST_RECORDS
    assert used


def test_a_journal_without_a_call_says_when_it_began(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0, 2, JOURNAL_BYTES)
    tail = JournalTail(writer.path)
    assert tail.last_ns == writer.started_ns
    assert not len(tail.made)
