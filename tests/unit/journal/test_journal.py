"""Journals: what is written is what is read, alive or dead, whole or torn."""

import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.environment import SIZE_VARIABLE
from distdoctor.journal.format import (
    DEFAULT_BYTES,
    HEADER,
    HEADER_BYTES,
    HEADER_FIELDS,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    RECORD_FIELDS,
    VERSION,
    RecordKind,
    offset_of,
)
from distdoctor.journal.layout import journal_name
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.reader import JournalReader, Records
from distdoctor.journal.writer import JournalWriter

SMALL_BYTES = 64 * 1024

DEADLINE_S = 120.0  # for a child process on a busy machine

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PUT_FIELDS = tuple(
    name for name, _ in RECORD_FIELDS if name not in {"commit", "time_ns", "kind"}
)
BITS = {"Q": 64, "I": 32, "B": 8}

fields = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([int(kind) for kind in RecordKind]),
        **{
            name: st.integers(-(1 << 31), (1 << 31) - 1)
            if code == "i"
            else st.integers(0, (1 << BITS[code]) - 1)
            for name, code in RECORD_FIELDS
            if name in PUT_FIELDS
        },
    }
)


@contextmanager
def a_folder() -> Iterator[Path]:
    """A new one for each example; fixtures live as long as a test."""
    with TemporaryDirectory() as name:
        yield Path(name)


def writer_in(folder: Path, size_bytes: int = SMALL_BYTES) -> JournalWriter:
    return JournalWriter(folder, rank=0, world_size=2, size_bytes=size_bytes)


def capacity_of(writer: JournalWriter) -> int:
    return JournalReader(writer.path).header().capacity


def calls_in(records: Records) -> list[int]:
    return [int(call) for call in records["call"]]


def put_many(writer: JournalWriter, first: int, last: int) -> None:
    for call in range(first, last + 1):
        writer.put(RecordKind.ENTER, call=call)


def slot_of(reader: JournalReader, number: int) -> int:
    """Where the record of this number, from 0, lies in the file."""
    header = reader.header()
    ring = HEADER_BYTES + header.strings_bytes
    return ring + number % header.capacity * RECORD_BYTES


def overwrite(path: Path, at: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(what)


# --- what is written is what is read ------------------------------------------------


@unhurried
@given(st.lists(fields, max_size=20))
def test_what_was_written_is_read(written: list[dict[str, int]]) -> None:
    with a_folder() as folder:
        writer = writer_in(folder)
        for record in written:
            fields_of = {**record}
            writer.put(fields_of.pop("kind"), **fields_of)
        read = JournalReader(writer.path).last()
        assert [
            {name: int(r[name]) for name in record} for record, r in zip_(read)
        ] == (written)
        assert (np.diff(read["time_ns"].astype(np.int64)) >= 0).all()


def zip_(read: Records) -> list[tuple[tuple[str, ...], Any]]:
    return [(("kind", *PUT_FIELDS), record) for record in read]


def test_what_is_left_out_has_its_usual_value(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.put(RecordKind.THREAD_END)
    (record,) = JournalReader(writer.path).last()
    assert {name: int(record[name]) for name in PUT_FIELDS} == dict.fromkeys(
        PUT_FIELDS, 0
    ) | {"reduce_op": 255, "peer": -1}


def test_the_header_says_whose_journal_it_is(tmp_path: Path) -> None:
    header = JournalReader(writer_in(tmp_path).path).header()
    assert (header.magic, header.version) == (MAGIC, VERSION)
    assert (header.rank, header.world_size, header.incarnation) == (0, 2, 0)
    assert header.pid == os.getpid()
    assert (header.head, header.lost, header.ended, header.steps) == (0, 0, 0, 0)


def test_the_header_follows_the_process(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, -1, 0, SMALL_BYTES)
    reader = JournalReader(writer.path)
    writer.become(3, 8)
    writer.step()
    writer.step()
    writer.lose()
    writer.put(RecordKind.ENTER)
    writer.end()
    header = reader.header()
    assert (header.rank, header.world_size) == (3, 8)
    assert (header.steps, header.lost, header.ended, header.head) == (2, 1, 1, 1)
    assert reader.head() == 1


@unhurried
@given(st.lists(st.text(max_size=40), max_size=20))
def test_strings_are_read_by_their_numbers(texts: list[str]) -> None:
    with a_folder() as folder:
        writer = writer_in(folder)
        numbers = [writer.intern(text) for text in texts]
        reader = JournalReader(writer.path)
        assert [reader.string(number) for number in numbers] == [
            text.encode("utf-8", "replace").decode() for text in texts
        ]


def test_a_string_is_written_once(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    assert writer.intern("a") == writer.intern("a") == 1
    assert writer.intern("b") == 2
    assert writer.intern("") == 0


def test_strings_that_come_later_are_found(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    reader = JournalReader(writer.path)
    assert reader.string(1) == ""
    assert reader.string(writer.intern("later")) == "later"


def test_the_size_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIZE_VARIABLE, str(SMALL_BYTES))
    writer = JournalWriter.of_environment(tmp_path, 0, 1)
    assert abs(writer.path.stat().st_size - SMALL_BYTES) < RECORD_BYTES


@pytest.mark.parametrize("size_bytes", [1, HEADER_BYTES, 3 * HEADER_BYTES])
def test_the_smallest_journal_holds_a_record(tmp_path: Path, size_bytes: int) -> None:
    writer = writer_in(tmp_path, size_bytes)
    put_many(writer, 1, 500)
    assert calls_in(JournalReader(writer.path).last())[-1] == 500


def test_a_record_is_of_one_size_for_writer_and_reader() -> None:
    assert RECORD_BYTES == RECORD.size == 64
    assert DEFAULT_BYTES % RECORD_BYTES == HEADER_BYTES % RECORD_BYTES == 0


@pytest.mark.parametrize("field", [name for name, _ in HEADER_FIELDS])
def test_offsets_are_those_of_the_header(field: str) -> None:
    names = [name for name, _ in HEADER_FIELDS]
    packed = bytearray(HEADER.size)
    HEADER.pack_into(packed, 0, *(int(name == field) for name in names))
    assert packed.index(1) == offset_of(field)


def test_an_offset_of_no_field_is_refused() -> None:
    with pytest.raises(KeyError):
        offset_of("colour")


def test_a_group_is_four_lines() -> None:
    assert group_text("0", "default_pg", 2, (0, 3)) == "0\ndefault_pg\n2\n0,3"


# --- what does not fit --------------------------------------------------------------


def test_the_oldest_records_fall_out_of_the_ring(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    capacity = capacity_of(writer)
    put_many(writer, 1, capacity + 10)
    reader = JournalReader(writer.path)
    assert calls_in(reader.last()) == list(range(11, capacity + 11))
    assert (reader.overwritten, reader.torn) == (10, 0)


def test_a_reader_that_comes_often_misses_nothing(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    reader = JournalReader(writer.path)
    step, seen = capacity_of(writer) // 3, list[int]()
    for n in range(10):
        put_many(writer, n * step + 1, (n + 1) * step)
        seen += calls_in(reader.poll())
    assert seen == list(range(1, 10 * step + 1))
    assert (reader.overwritten, reader.torn) == (0, 0)


def test_a_second_look_gives_only_what_is_new(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    reader = JournalReader(writer.path)
    put_many(writer, 1, 3)
    assert calls_in(reader.poll()) == [1, 2, 3]
    assert calls_in(reader.poll()) == []
    put_many(writer, 4, 4)
    assert calls_in(reader.poll()) == [4]


def test_strings_that_do_not_fit_are_counted_as_lost(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    numbers = [writer.intern(f"{n:0>1000}") for n in range(100)]
    reader = JournalReader(writer.path)
    kept = [number for number in numbers if number]
    assert 0 < len(kept) < 100
    assert [reader.string(number) for number in kept] == [
        f"{n:0>1000}" for n in range(len(kept))
    ]
    assert reader.header().lost == 100 - len(kept)


def test_a_short_string_still_fits_where_a_long_one_did_not(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    assert writer.intern("x" * SMALL_BYTES) == 0
    assert JournalReader(writer.path).string(writer.intern("short")) == "short"


def test_a_string_that_had_to_be_cut_is_counted_as_lost(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, 1 << 20)
    writer.intern("x" * 100_000)
    assert JournalReader(writer.path).header().lost == 1


# --- files --------------------------------------------------------------------------


def test_every_process_of_a_rank_has_its_own_file(tmp_path: Path) -> None:
    writers = [writer_in(tmp_path) for _ in range(3)]
    assert [writer.path.name for writer in writers] == [
        journal_name(0, n) for n in range(3)
    ]
    assert [JournalReader(w.path).header().incarnation for w in writers] == [0, 1, 2]


def test_a_journal_is_for_its_owner_only(tmp_path: Path) -> None:
    assert writer_in(tmp_path).path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        writer_in(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_really_full_is_said_too(tmp_path: Path) -> None:
    """A journal larger than any file may be needs no disk to be full."""
    with pytest.raises(OSError, match=r".+"):
        writer_in(tmp_path, 1 << 62)
    assert list(tmp_path.iterdir()) == []


def test_the_space_of_a_journal_is_taken_at_once(tmp_path: Path) -> None:
    status = writer_in(tmp_path).path.stat()
    assert status.st_blocks * 512 >= status.st_size


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        writer_in(tmp_path / "gone")


# --- what is not a journal ----------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "cannot be read"),
        (b"DISTJNL1", "less than a journal's header; it was cut off"),
        (b"\0" * HEADER_BYTES, "is not a journal of distdoctor"),
        (b"PK\3\4" + b"x" * HEADER_BYTES, "is not a journal of distdoctor"),
    ],
)
def test_another_file_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "rank-0.0.journal"
    path.write_bytes(content)
    with pytest.raises(JournalUnreadable, match=complaint):
        JournalReader(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalUnreadable, match="cannot be read"):
        JournalReader(tmp_path / "rank-0.0.journal")


def test_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = writer_in(tmp_path).path
    overwrite(path, offset_of("version"), b"\7")
    with pytest.raises(
        JournalUnreadable, match="version 7; this release reads version 2"
    ):
        JournalReader(path)


@unhurried
@given(
    st.dictionaries(
        st.sampled_from(["capacity", "strings_bytes", "head", "strings_tail"]),
        st.sampled_from([0, 1, 1 << 20, 1 << 39, 1 << 62, (1 << 64) - 1]),
        min_size=1,
    )
)
def test_a_damaged_header_is_no_reason_to_crash(damage: dict[str, int]) -> None:
    with a_folder() as folder:
        writer = writer_in(folder)
        number = writer.intern("text")
        put_many(writer, 1, 20)
        for field, value in damage.items():
            overwrite(writer.path, offset_of(field), value.to_bytes(8, "little"))
        try:
            reader = JournalReader(writer.path)
        except JournalUnreadable:
            return
        reader.last()
        reader.string(number)


# --- damage -------------------------------------------------------------------------


@unhurried
@given(st.data())
def test_a_journal_cut_anywhere_gives_what_is_left(data: st.DataObject) -> None:
    with a_folder() as folder:
        writer = writer_in(folder, 3 * HEADER_BYTES)
        capacity = capacity_of(writer)
        written = data.draw(st.integers(0, 2 * capacity + 3))
        texts = [f"text {n}" for n in range(20)]
        numbers = [writer.intern(text) for text in texts]
        put_many(writer, 1, written)
        size = writer.path.stat().st_size
        left = data.draw(st.integers(0, size))
        os.truncate(writer.path, left)
        try:
            reader = JournalReader(writer.path)
        except JournalUnreadable:
            assert left < HEADER_BYTES
            return
        expected = [
            call
            for call in range(max(1, written - capacity + 1), written + 1)
            if slot_of(reader, call - 1) + RECORD_BYTES <= left
        ]
        assert calls_in(reader.last()) == expected
        assert reader.overwritten == max(0, written - capacity)
        assert reader.torn == written - reader.overwritten - len(expected)
        assert reader.truncated is (left < size)
        read = [reader.string(number) for number in numbers]
        assert read == texts[: len(list(filter(None, read)))] + [""] * read.count("")


@pytest.mark.parametrize("commit", [0, 1, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("torn", [1, 3, 5])
def test_a_torn_record_costs_only_itself(
    tmp_path: Path, torn: int, commit: int
) -> None:
    writer = writer_in(tmp_path)
    put_many(writer, 1, 5)
    reader = JournalReader(writer.path)
    if commit == torn:
        commit = 2  # the record's own: it would not be torn
    overwrite(writer.path, slot_of(reader, torn - 1), commit.to_bytes(8, "little"))
    assert calls_in(reader.last()) == [call for call in range(1, 6) if call != torn]
    assert reader.torn + reader.overwritten == 1


def test_an_unfinished_record_is_waited_for(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    put_many(writer, 1, 3)
    reader = JournalReader(writer.path)
    overwrite(writer.path, slot_of(reader, 1), bytes(8))
    assert calls_in(reader.poll()) == [1]
    assert calls_in(reader.poll()) == []
    overwrite(writer.path, slot_of(reader, 1), b"\2")
    assert calls_in(reader.poll()) == [2, 3]
    assert (reader.torn, reader.overwritten) == (0, 0)


def test_garbage_in_the_ring_leaves_the_rest(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    put_many(writer, 1, 9)
    reader = JournalReader(writer.path)
    overwrite(writer.path, slot_of(reader, 3), b"\xa5" * 2 * RECORD_BYTES)
    assert calls_in(reader.last()) == [1, 2, 3, 6, 7, 8, 9]


def test_garbage_among_the_strings_is_read_as_such(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    number = writer.intern("abcd")
    overwrite(writer.path, HEADER_BYTES + 2, b"\xff\xfeab")
    assert JournalReader(writer.path).string(number) == "\ufffd\ufffdab"


def test_a_torn_string_is_none(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    first, second = writer.intern("first"), writer.intern("second")
    overwrite(writer.path, offset_of("strings_tail"), (7 + 2 + 3).to_bytes(8, "little"))
    reader = JournalReader(writer.path)
    assert (reader.string(first), reader.string(second)) == ("first", "")


def test_a_ring_of_nothing_but_holes_is_read_in_no_time(tmp_path: Path) -> None:
    """A copy may keep the header and lose the rest, as sparse files do."""
    writer = writer_in(tmp_path, 1 << 20)
    capacity = capacity_of(writer)
    put_many(writer, 1, capacity)
    reader = JournalReader(writer.path)
    overwrite(writer.path, slot_of(reader, 0), bytes(capacity * RECORD_BYTES))
    started = time.process_time()
    assert calls_in(reader.last()) == []
    assert reader.torn == capacity
    assert time.process_time() - started < 1.0  # s; a look per record took 12


# --- several threads ----------------------------------------------------------------


def test_a_thread_that_was_overtaken_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thread has its number and is held up; the second writes and blocks.

    This befalls records that Python writes; C is not held up in between.
    """
    monkeypatch.setattr("distdoctor.journal.writer.HOT", None)
    clock, held, go_on = time.monotonic_ns, threading.Event(), threading.Event()

    def slow_clock() -> int:
        if threading.current_thread() is slow:
            held.set()
            go_on.wait(DEADLINE_S)
        return clock()

    monkeypatch.setattr(time, "monotonic_ns", slow_clock)
    slow = threading.Thread(target=lambda: writer.put(RecordKind.ENTER, call=1))
    writer = writer_in(tmp_path)
    slow.start()
    assert held.wait(DEADLINE_S)
    writer.put(RecordKind.WAIT, call=2)
    reader = JournalReader(writer.path)
    assert calls_in(reader.poll()) == []
    go_on.set()
    slow.join(DEADLINE_S)
    assert calls_in(reader.last()) == [1, 2]


class _Finished:
    """The ring, in which a record is finished between a reader's two looks."""

    def __init__(self, slots: Any, path: Path, at: int, commit: int) -> None:
        self._slots, self._path, self._at, self._commit = slots, path, at, commit

    def __getitem__(self, which: Any) -> Any:
        seen = self._slots[which]
        if not isinstance(which, str):
            seen = seen.copy()
            overwrite(self._path, self._at, self._commit.to_bytes(8, "little"))
        return seen


def test_a_record_finished_between_two_looks_is_not_lost(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    put_many(writer, 1, 3)
    reader = JournalReader(writer.path)
    at = slot_of(reader, 1)
    overwrite(writer.path, at, bytes(8))
    reader._slots = _Finished(reader._slots, writer.path, at, 2)  # type: ignore[assignment]
    assert calls_in(reader.poll()) + calls_in(reader.poll()) == [1, 2, 3]
    assert reader.overwritten == 0


def test_threads_share_a_journal(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, 1 << 20)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def write(thread: int) -> None:
        for call in range(1000):
            writer.put(RecordKind.ENTER, thread, call)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    finally:
        sys.setswitchinterval(interval)
    records = JournalReader(writer.path).last()
    assert len(records) == 4000
    for n in range(4):
        assert calls_in(records[records["thread"] == n]) == list(range(1000))


@pytest.mark.parametrize("kind", [RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE])
@pytest.mark.parametrize("told", [(7,), (7, 1 << 40, (1 << 32) - 1)])
def test_a_mark_is_written_as_put_writes_it(
    tmp_path: Path, kind: RecordKind, told: tuple[int, ...]
) -> None:
    journal = JournalWriter(tmp_path, 0, 2, SMALL_BYTES)
    journal.put(kind, (1 << 32) - 2, *told)
    journal.mark(kind, (1 << 32) - 2, *told)
    begin = HEADER_BYTES + int(HEADER.unpack_from(journal._map)[8])
    both = [
        bytes(journal._map[at + 16 : at + RECORD_BYTES])
        for at in (begin, begin + RECORD_BYTES)
    ]
    assert both[0] == both[1] != bytes(RECORD_BYTES - 16)
    assert journal._words[begin // 8 + RECORD_BYTES // 8] == 2
