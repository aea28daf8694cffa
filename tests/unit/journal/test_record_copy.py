"""Parts of a record make the same record elsewhere, whatever happens on the way."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.errors import JournalUnreadable, RecordUnreadable
from distdoctor.journal.format import RECORD_BYTES, RecordKind
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.notes import NotesWriter, notes_of
from distdoctor.journal.private_files import append_line
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.record_copy import RecordCopy
from distdoctor.journal.record_growth import (
    FilePart,
    JournalPart,
    Part,
    RecordGrowth,
)
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.optimizer_step import Piled

SMALL = 4096 + 8192 + 64 * RECORD_BYTES
AHEAD_NS = 1_000_000
FIRST = 1 << 22


def number_of(pid: int) -> int:
    return FIRST + pid


def write_some(writer: JournalWriter, count: int, begin: int = 0) -> None:
    for n in range(begin, begin + count):
        site = writer.intern(f"t.py\n{n % 7}\nmain")
        writer.put(RecordKind.ENTER, 5, n + 1, n + 1, site=site)


def pump(growth: RecordGrowth, copy: RecordCopy, lose: Callable[[Part], bool]) -> None:
    """Send all that is new, but for some that is lost; go back where that is asked."""
    for part in growth.parts():
        if not lose(part) and (position := copy.add(part, AHEAD_NS)) is not None:
            growth.rewind(position)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(mode=0o700)
    there.mkdir(mode=0o700)
    return here, there


def assert_alike(here: Path, there: Path, name: str = "rank-0.0.journal") -> None:
    ours, theirs = JournalReader(here / name), JournalReader(there / name)
    a, b = ours.last(), theirs.last()
    assert a["commit"].tolist() == b["commit"].tolist()
    assert (a["time_ns"] - b["time_ns"]).tolist() == [AHEAD_NS] * len(a)
    assert [ours.string(n) for n in a["site"]] == [theirs.string(n) for n in b["site"]]
    header, copied = ours.header(), theirs.header()
    assert copied.pid == number_of(header.pid)
    assert copied.started_ns == header.started_ns - AHEAD_NS
    assert copied.head == header.head


def test_what_grows_here_grows_there(folders: tuple[Path, Path]) -> None:
    here, there = folders
    writer = JournalWriter(here, 0, 2, SMALL)
    growth, copy = RecordGrowth(here), RecordCopy(there, number_of)
    for begin in range(0, 300, 50):  # the ring goes round
        write_some(writer, 50, begin)
        pump(growth, copy, lambda _: False)
        assert_alike(here, there)
    assert not list(growth.parts())


def test_a_main_thread_is_one_there_as_well(folders: tuple[Path, Path]) -> None:
    here, there = folders
    writer = JournalWriter(here, 0, 1, SMALL)
    pid = JournalReader(writer.path).header().pid
    writer.put(RecordKind.ENTER, pid, 1, 1)
    pump(RecordGrowth(here), RecordCopy(there, number_of), lambda _: False)
    reader = JournalReader(there / "rank-0.0.journal")
    assert reader.last()["thread"].tolist() == [reader.header().pid]


def test_notes_are_there_before_the_records_that_tell_of_them(
    folders: tuple[Path, Path],
) -> None:
    here, there = folders
    writer = JournalWriter(here, 0, 1, SMALL)
    notes = NotesWriter(writer.path)
    begin, size = notes.add(Piled(name="w"))
    writer.note(5, begin, size, 0)
    copy = RecordCopy(there, number_of)
    for part in RecordGrowth(here).parts():
        copy.add(part, 0)
        path = there / "rank-0.0.journal"
        if path.exists() and len(JournalReader(path).poll()):
            there_too = notes_of(path).read_bytes()
            assert there_too == notes_of(writer.path).read_bytes()


def test_two_nodes_may_have_the_same_rank_and_process(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    here, there = folders
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    for n, folder in enumerate((here, other)):
        write_some(JournalWriter(folder, 0, 1, SMALL), 3 + n)
        copy = RecordCopy(there, lambda pid, n=n: pid + (n + 1) * FIRST)  # type: ignore[misc]
        pump(RecordGrowth(folder), copy, lambda _: False)
    headers = [JournalReader(there / f"rank-0.{n}.journal").header() for n in (0, 1)]
    assert [one.head for one in headers] == [3, 4]
    assert [one.incarnation for one in headers] == [0, 1]
    assert headers[0].pid != headers[1].pid


def test_lines_have_the_numbers_of_this_record(folders: tuple[Path, Path]) -> None:
    here, there = folders
    append_line(here / EXITS_FILE, json.dumps({"pid": 7, "status": -9, "by": 6}))
    with (here / EXITS_FILE).open("a") as file:
        file.write('{"pid": 8')  # torn
    pump(RecordGrowth(here), RecordCopy(there, number_of), lambda _: False)
    (line,) = (there / EXITS_FILE).read_text().splitlines()
    assert json.loads(line) == {"pid": FIRST + 7, "status": -9, "by": FIRST + 6}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.0, 0.9))
def test_what_is_lost_is_sent_again(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float
) -> None:
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    chance = random.Random(seed)
    writer = JournalWriter(here, 0, 2, SMALL)
    growth, copy = RecordGrowth(here), RecordCopy(there, number_of)
    notes = NotesWriter(writer.path)
    begin = 0
    for _ in range(8):
        more = chance.randrange(20)
        write_some(writer, more, begin)
        writer.note(5, *notes.add(Piled(name="w" * more)), 0)
        begin += more + 1
        pump(growth, copy, lambda _: chance.random() < share)
    growth.rewind_to(copy.positions())
    for _ in range(3):
        pump(growth, copy, lambda _: False)
    if begin <= 64:  # nothing has fallen out of the ring meanwhile
        assert_alike(here, there)
    copied = there / "rank-0.0.journal"
    assert JournalReader(copied).header().head == begin
    assert notes_of(copied).read_bytes() == notes_of(writer.path).read_bytes()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_parts_may_come_in_any_order_and_twice(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    chance = random.Random(seed)
    writer = JournalWriter(here, 0, 2, SMALL)
    growth, copy = RecordGrowth(here), RecordCopy(there, number_of)
    parts: list[Part] = []
    for begin in range(0, 50, 10):
        write_some(writer, 10, begin)
        parts += growth.parts()
    mixed = parts * 2
    chance.shuffle(mixed)
    for part in mixed:
        copy.add(part, AHEAD_NS)
    for part in parts:
        assert copy.add(part, AHEAD_NS) is None
    assert_alike(here, there)


BYTES = st.binary(max_size=300)
NAMES = st.sampled_from(
    ["rank-0.0.journal", "rank-0.0.notes", "exits.jsonl", "nccl/a.1.log", "run.json"]
) | st.text(max_size=20)
HOSTILE = st.one_of(
    st.builds(FilePart, NAMES, st.integers(0, 2**40), BYTES),
    st.builds(
        JournalPart,
        *(NAMES, BYTES, st.integers(0, 2**40), BYTES, st.integers(0, 2**40), BYTES),
    ),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(HOSTILE, max_size=5), st.randoms(use_true_random=False))
def test_hostile_parts_are_refused_or_stay_in_the_record(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[Part],
    chance: random.Random,
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    here, there = outer / "here", outer / "there"
    here.mkdir(mode=0o700)
    there.mkdir(mode=0o700)
    write_some(JournalWriter(here, 0, 2, SMALL), 5)
    real = [*RecordGrowth(here).parts()]
    data = bytearray(msgspec.msgpack.encode(real[-1]))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    decoder = msgspec.msgpack.Decoder(FilePart | JournalPart)
    try:
        damaged: list[Part] = [decoder.decode(bytes(data))]
    except ValueError:
        damaged = []
    copy = RecordCopy(there, number_of)
    for part in [*parts, real[0], *damaged]:
        try:
            copy.add(part, 0)
        except (RecordUnreadable, OSError):
            continue
    allowed = {"nccl"} | {path.name for path in there.iterdir() if path.is_file()}
    assert {path.name for path in outer.iterdir()} == {"here", "there"}
    assert {path.name for path in there.iterdir()} <= allowed
    assert not (there / "run.json").exists()
    for path in there.glob("*.journal"):
        try:
            JournalReader(path).last()
        except JournalUnreadable:
            continue
