"""Texts in journals: whatever is in a name, it comes out as it went in."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from distdoctor.journal.folder import read_exits
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.notes import NotesWriter
from distdoctor.journal.notes_reader import NotesReader
from distdoctor.journal.packed_texts import group_text, joined, members_of, parted
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.texts import Tables, groups_of
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.checkpoints import Written
from distdoctor.probes.call_sites import text_of

any_text = st.text(
    st.characters(codec=None) | st.sampled_from("\n\r\\\0\x1b\x85\u2028|;=,n\ud800")
)


@given(st.lists(any_text, min_size=1))
def test_any_texts_come_out_as_they_went_in(texts: list[str]) -> None:
    one = joined(*texts)
    assert parted(one) == texts
    assert one.count("\n") == len(texts) - 1
    assert one.encode().decode() == one


@given(any_text, any_text, st.integers(1, 9))
def test_a_group_keeps_its_ranks_whatever_it_is_called(
    name: str, description: str, size: int
) -> None:
    text = group_text(name, description, 0, tuple(range(size)))
    assert members_of(text) == tuple(range(size))
    (group,) = groups_of([text], size)
    assert group.ranks == tuple(range(size))
    assert group.name.isprintable()


@given(any_text, st.integers(1, 10**6), any_text)
def test_a_line_keeps_its_file_and_function(
    file: str, line: int, function: str
) -> None:
    place = Tables("/elsewhere").place(joined("/job/" + file, str(line), function))
    assert place is not None
    assert (place.file, place.line, place.function) == ("/job/" + file, line, function)


def test_the_callers_of_a_line_stand_behind_it() -> None:
    lines = [text_of(f"/job/{name}.py", n, "f") for n, name in enumerate("ab\n", 1)]
    tables = Tables("/job")
    numbers = [tables.site("\n".join(lines[:n])) for n in (1, 2, 3)]
    assert len(set(numbers)) == 1
    assert [tables.callers_of("\n".join(lines[:n])) for n in (1, 2, 3)] == [0, 1, 2]
    assert [place.file for place in tables.callers[2]] == ["b.py", "\n.py"]


def test_a_line_of_a_file_with_a_strange_name_is_found_again(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0, 1, 64 * 1024)
    number = writer.intern(text_of("/job/a\nb\udc80\\n.py", 7, "main"))
    place = Tables("/job").place(JournalReader(writer.path).string(number))
    assert place is not None
    assert (place.file, place.line) == ("a\nb\udc80\\n.py", 7)


def test_a_process_ends_in_a_file_with_a_strange_name(tmp_path: Path) -> None:
    site = "/job/\udc80\n3\nmain"
    note = json.dumps({"pid": 7, "status": -9, "by": 1, "site": site})
    (tmp_path / EXITS_FILE).write_text(note + "\n")
    assert read_exits(tmp_path)[7].site == site


def test_a_note_of_a_file_with_a_strange_name_is_read(tmp_path: Path) -> None:
    journal = tmp_path / "rank-0.0.journal"
    writer = NotesWriter(journal)
    event = Written(rank=-1, path="a\n\udc80")
    begin, size = writer.add(event)
    writer.close()
    reader = NotesReader(journal)
    assert reader.read(begin, size) == event
    reader.close()
