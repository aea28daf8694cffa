"""A journal that one process reads while another writes it, or dies."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.format import (
    HEADER_BYTES,
)
from distdoctor.journal.layout import journal_name
from distdoctor.journal.reader import JournalReader, Records

DEADLINE_S = 120.0  # for a child process on a busy machine


def calls_in(records: Records) -> list[int]:
    return [int(call) for call in records["call"]]


WRITER = """
import sys, time
from pathlib import Path
from distdoctor.journal.writer import JournalWriter
folder, size, count, pace_s = Path(sys.argv[1]), *map(float, sys.argv[2:])
writer = JournalWriter(folder, 0, 1, int(size))
call = 0
while call < count:
    call += 1
    writer.put(1, call=call, ordinal=3 * call, signature=5 * call, nodes=call % 1000)
    if call % 100 == 0:
        time.sleep(pace_s)
writer.end()
"""


@contextmanager
def a_writing_process(
    folder: Path, size_bytes: int, count: int, pace_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], JournalReader]]:
    arguments = [str(folder), str(size_bytes), str(count), str(pace_s)]
    process = subprocess.Popen([sys.executable, "-c", WRITER, *arguments])
    try:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                reader = JournalReader(folder / journal_name(0, 0))
                break
            except JournalUnreadable:
                assert time.monotonic() < end
                time.sleep(0.005)
        yield process, reader
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def assert_whole(records: Records) -> None:
    call = records["call"].astype(np.int64)
    assert (records["commit"] == call).all()
    assert (records["ordinal"] == 3 * call).all()
    assert (records["signature"] == 5 * call).all()
    assert (records["nodes"] == call % 1000).all()


def test_a_reader_follows_a_living_writer(tmp_path: Path) -> None:
    count, seen = 60_000, list[int]()
    with a_writing_process(tmp_path, 8 << 20, count, 0.0) as (_, reader):
        end = time.monotonic() + DEADLINE_S
        while len(seen) < count and time.monotonic() < end:
            records = reader.poll()
            assert_whole(records)
            seen += calls_in(records)
    assert seen == list(range(1, count + 1))
    assert (reader.overwritten, reader.torn) == (0, 0)


def test_a_reader_that_is_overrun_knows_what_it_missed(tmp_path: Path) -> None:
    """The ring holds a handful: the writer laps the reader while it looks."""
    count, taken, last = 100_000, 0, 0
    with a_writing_process(tmp_path, 3 * HEADER_BYTES, count, 0.0) as (process, reader):
        end = time.monotonic() + DEADLINE_S
        while reader.position < count and time.monotonic() < end:
            records = reader.poll()
            assert_whole(records)
            calls = calls_in(records)
            assert calls == sorted(calls)
            assert not calls or calls[0] > last
            taken, last = taken + len(calls), max([last, *calls])
        process.wait(DEADLINE_S)
    assert last == count
    assert taken + reader.overwritten == count
    assert reader.torn == 0


def test_a_killed_writer_leaves_all_it_wrote(tmp_path: Path) -> None:
    with a_writing_process(tmp_path, 8 << 20, 1 << 40, 0.0005) as (process, reader):
        end = time.monotonic() + DEADLINE_S
        while reader.head() < 1000 and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
    reader = JournalReader(tmp_path / journal_name(0, 0))
    records = reader.last()
    assert_whole(records)
    assert len(records) >= 1000
    assert calls_in(records) == list(range(1, len(records) + 1))
    assert reader.torn <= 1
    assert not reader.header().ended
