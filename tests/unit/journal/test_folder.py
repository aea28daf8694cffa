"""The record folder: what is put in comes out, and a stranger's does no harm."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.errors import RecordUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.folder import (
    MANIFEST,
    SCHEMA,
    SOURCES,
    STACKS,
    Manifest,
    StackFrame,
    StackSample,
    read_exits,
    read_losses,
    read_manifest,
    read_sources,
    read_stacks,
    read_substitutes,
)
from distdoctor.journal.format import RecordKind
from distdoctor.journal.layout import (
    EXITS_FILE,
    LOSSES_FILE,
    SHELLS_FILE,
    SUBSTITUTES_FILE,
)
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.trimming import trim_record
from distdoctor.journal.writer import JournalWriter

MINIMAL = Manifest(distdoctor="0.1.0", launch=["python", "t.py"], directory="/job")

manifests = st.builds(
    Manifest,
    distdoctor=st.just("0.1.0"),
    launch=st.lists(st.text(max_size=9), max_size=3),
    script=st.text(max_size=9),
    directory=st.text(max_size=9),
    ranks=st.integers(0, 1 << 20),
    started=st.just("2026-01-31T12:00:00+00:00"),
    seconds=st.floats(0, 1e6),
    exit_code=st.none() | st.integers(-64, 255),
    stopped=st.sampled_from(["", "deadlock", "budget"]),
    alive=st.lists(st.integers(1, 1 << 22), max_size=3),
    proof_ms=st.none() | st.floats(0, 1e6),
    remarks=st.lists(st.text(max_size=9), max_size=2),
)


def statuses(folder: Path) -> dict[int, int]:
    return {pid: exit_.status for pid, exit_ in read_exits(folder).items()}


@settings(deadline=None)
@given(manifests)
def test_a_manifest_comes_back(manifest: Manifest) -> None:
    with TemporaryDirectory() as name:
        record.write(Path(name), MANIFEST, manifest)
        assert read_manifest(Path(name)) == manifest


def test_a_manifest_may_be_written_again(tmp_path: Path) -> None:
    record.write(tmp_path, MANIFEST, MINIMAL)
    later = msgspec.structs.replace(MINIMAL, stopped="deadlock")
    record.write(tmp_path, MANIFEST, later)
    assert read_manifest(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_a_manifest_may_hold_more_than_this_release_knows(tmp_path: Path) -> None:
    fields = msgspec.to_builtins(MINIMAL) | {"colour": "green"}
    (tmp_path / MANIFEST).write_text(json.dumps(fields))
    assert read_manifest(tmp_path) == MINIMAL


def test_what_a_manifest_does_not_say_is_not_known(tmp_path: Path) -> None:
    fields = {"distdoctor": "0.1.0", "launch": [], "directory": "/job"}
    (tmp_path / MANIFEST).write_text(json.dumps(fields))
    manifest = read_manifest(tmp_path)
    assert (manifest.ranks, manifest.exit_code, manifest.stopped) == (0, None, "")


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    """Names of files are bytes; Python hands on what is not UTF-8 as half a pair."""
    manifest = msgspec.structs.replace(MINIMAL, script="tr\udce9.py")
    record.write(tmp_path, MANIFEST, manifest)
    assert read_manifest(tmp_path).script.startswith("tr")


def test_stacks_come_back(tmp_path: Path) -> None:
    samples = [
        StackSample(
            rank=1,
            pid=7,
            seconds=2.5,
            cpu_seconds=0.25,
            frames=[StackFrame("t.py", 3, "main", {"epoch": 2})],
        ),
        StackSample(rank=0, pid=6, seconds=3.0, taken_by="signal"),
    ]
    record.write(tmp_path, STACKS, samples)
    assert read_stacks(tmp_path) == samples


def test_sources_come_back(tmp_path: Path) -> None:
    sources = {"t.py": "print('é')\n\t# \x1b[31m\n", "empty.py": ""}
    record.write(tmp_path, SOURCES, sources)
    assert read_sources(tmp_path) == sources


# --- what is kept ---------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 400))
def test_a_journal_is_cut_to_what_it_holds(written: int) -> None:
    with TemporaryDirectory() as name:
        writer = JournalWriter(Path(name), 0, 2, 32 * 1024)
        text = writer.intern("text")
        for call in range(written):
            writer.put(RecordKind.ENTER, call=call)
        before = JournalReader(writer.path)
        whole, size = before.last(), writer.path.stat().st_size
        trim_record(Path(name))
        after = JournalReader(writer.path)
        assert (after.last() == whole).all()
        assert (after.overwritten, after.torn) == (before.overwritten, before.torn)
        assert after.truncated is False
        assert after.string(text) == "text"
        assert writer.path.stat().st_size < size - 7000  # strings had 8 KiB


def test_what_is_no_journal_is_not_cut(tmp_path: Path) -> None:
    files = {"a.journal": b"", "b.journal": b"x" * 9000, "c.txt": b"y"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "d.journal").mkdir()
    trim_record(tmp_path)
    for name, content in files.items():
        assert (tmp_path / name).read_bytes() == content


# --- what is not there ----------------------------------------------------------------


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordUnreadable, match="is not a folder; give the one"):
        read_manifest(tmp_path / "gone")


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordUnreadable, match=r"holds no run\.json; give a folder"):
        read_manifest(tmp_path)


def test_what_was_not_kept_is_empty(tmp_path: Path) -> None:
    assert read_stacks(tmp_path) == []
    assert read_sources(tmp_path) == {}
    assert statuses(tmp_path) == {}
    assert read_losses(tmp_path) == {}
    assert read_substitutes(tmp_path) == ()


def test_what_took_the_place_of_cuda_is_told_once(tmp_path: Path) -> None:
    lines = '{"pid": 1, "kind": "nccl"}', '{"pid": 2, "kind": "amp"}', '{"pid": 3, "ki'
    (tmp_path / SUBSTITUTES_FILE).write_text("\n".join([*lines[:2], *lines]))
    assert read_substitutes(tmp_path) == ("amp", "nccl")


# --- what a stranger may have put there -----------------------------------------------


def test_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(MINIMAL, schema="distdoctor.record/2")
    record.write(tmp_path, MANIFEST, manifest)
    with pytest.raises(
        RecordUnreadable, match=f"record/2.*this release reads '{SCHEMA}"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"distdoctor": 1}',
        b'{"distdoctor": "0.1.0", "launch": "x", "directory": ""}',
        b'{"distdoctor": "0.1.0", "launch": [], "directory": "\\ud800"}',
        b"[" * 100_000,
        b'{"distdoctor": "0.1.0", "launch": [], "directory": "", "ranks": 1e999}',
        b'{"schema": "distdoctor.record/1", "alive": [-1, "x"]}',
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(RecordUnreadable, match="the record is damaged or not yours"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b'[{"rank": 0}]', b'[{"rank": "0"'])
def test_damaged_stacks_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STACKS).write_bytes(content)
    with pytest.raises(RecordUnreadable, match="damaged"):
        read_stacks(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b'{"t.py": 3}', b'{"t.py": "'])
def test_damaged_sources_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SOURCES).write_bytes(content)
    with pytest.raises(RecordUnreadable, match="damaged"):
        read_sources(tmp_path)


@pytest.mark.parametrize("name", [MANIFEST, STACKS, SOURCES])
def test_a_file_of_any_size_is_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space
    readers = {MANIFEST: read_manifest, STACKS: read_stacks, SOURCES: read_sources}
    with pytest.raises(RecordUnreadable, match="is larger than"):
        readers[name](tmp_path)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(RecordUnreadable, match="cannot be read"):
        read_manifest(tmp_path)


# --- notes of many processes ----------------------------------------------------------


def test_exits_are_read_by_process(tmp_path: Path) -> None:
    (tmp_path / EXITS_FILE).write_text(
        '{"pid": 7, "status": 0}\n{"pid": 8, "status": -9}\n'
    )
    assert statuses(tmp_path) == {7: 0, 8: -9}


def test_a_rank_has_the_exit_of_its_shell_where_nobody_saw_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / EXITS_FILE).write_text(
        '{"pid": 7, "status": 137}\n{"pid": 8, "status": 3}\n{"pid": 9, "status": 1}\n'
    )
    (tmp_path / SHELLS_FILE).write_text(
        '{"pid": 70, "shell": 7}\n{"pid": 9, "shell": 8}\n{"pid": 71, "shell": 72}\n'
        '{"pid": 73}\n{"pid"'
    )
    assert statuses(tmp_path) == {7: 137, 8: 3, 9: 1, 70: 137}


@pytest.mark.parametrize(
    "line",
    [
        '{"pid": 9, "sta',
        '{"pid": 9}',
        "[9, 1]",
        "9",
        "null",
        '{"pid": null, "status": 1}',
        '{"pid": 9, "status": "often"}',
        '{"pid": 9, "status": 1e999}',
        "[" * 100_000,
        "\x00\x00\x00",
    ],
)
def test_a_torn_line_costs_only_itself(tmp_path: Path, line: str) -> None:
    exits = f'{{"pid": 7, "status": 0}}\n{line}\n{{"pid": 8, "status": -9}}'
    losses = f'{{"rank": 7, "why": "a"}}\n{line}\n{{"rank": 8, "why": "b"}}'
    (tmp_path / EXITS_FILE).write_text(exits)
    (tmp_path / LOSSES_FILE).write_text(losses)
    assert statuses(tmp_path) == {7: 0, 8: -9}
    assert read_losses(tmp_path) == {7: "a", 8: "b"}


def test_a_line_that_is_no_text_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / EXITS_FILE).write_bytes(
        b'{"pid": 7, "status": 0}\n\xff\xfe\n{"pid": 8, "status": 1}\n'
    )
    assert statuses(tmp_path) == {7: 0, 8: 1}


def test_the_first_loss_of_a_rank_is_told(tmp_path: Path) -> None:
    lines = [
        {"pid": 1, "rank": 0, "why": "entering: OSError()"},
        {"pid": 1, "rank": 0, "why": "later"},
        {"pid": 2, "rank": -1, "why": "no rank"},
    ]
    (tmp_path / LOSSES_FILE).write_text("\n".join(map(json.dumps, lines)))
    assert read_losses(tmp_path) == {0: "entering: OSError()", -1: "no rank"}
