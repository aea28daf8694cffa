"""Notes: what a rank was seen to do, written beside its journal and read back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distdoctor.journal import notes
from distdoctor.journal.assembly import assemble
from distdoctor.journal.environment import OWNER_VARIABLE, SIZE_VARIABLE
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import draw
from distdoctor.model.events import Left, Observation, Place
from distdoctor.model.observations.data import Read
from distdoctor.model.run import Run
from distdoctor.probes.recorder import Recorder

SITE = "/job/train.py\n7\nmain"


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setenv(SIZE_VARIABLE, str(64 * 1024))
    monkeypatch.setenv(OWNER_VARIABLE, "")
    recorder = Recorder()
    recorder.folder = tmp_path
    monkeypatch.setattr(recorder, "_offer_stacks", lambda: None)
    recorder.open(0, 1)
    yield recorder
    recorder.close()


def read(folder: Path) -> Run:
    return assemble(folder, Manifest(distdoctor="", launch=[], directory="/job"))


def only_notes(folder: Path) -> Path:
    (file,) = folder.glob("*.notes")
    return file


def observations(folder: Path) -> list[Observation]:
    return read(folder).of(Observation, 0)


def test_an_observation_is_read_as_it_was_written(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.observe(Read(samples=(0, 1, 2), contents=(2**64 - 1, 1, 2)), SITE)
    recorder.tell(Left())
    recorder.observe(Read(steps=3, unfinished=True))
    assert observations(tmp_path)[0] == Read(
        rank=0,
        samples=(0, 1, 2),
        contents=(2**64 - 1, 1, 2),
        place=Place("train.py", 7, "main"),
    )
    words = draw(read(tmp_path)).split()
    assert words[3].startswith("read(samples=0-2,")
    assert words[4:6] == ["leave", "read(steps=3,unfinished)"]


@pytest.mark.parametrize("contents", [(), (5,), (5, 6, 7, 8)])
def test_as_many_samples_are_told_by_content_as_could_be(
    recorder: Recorder, tmp_path: Path, contents: tuple[int, ...]
) -> None:
    """None of a batch of a class of the user's own; only the first of very many."""
    recorder.observe(Read(samples=(0, 1, 2), contents=contents))
    assert observations(tmp_path) == [
        Read(rank=0, samples=(0, 1, 2), contents=contents)
    ]


def test_a_process_without_observations_has_no_file(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.tell(Left())
    assert not list(tmp_path.glob("*.notes"))


@pytest.mark.parametrize("kept", [0, 1, 5, -1])
def test_a_note_that_was_cut_off_costs_only_itself(
    recorder: Recorder, tmp_path: Path, kept: int
) -> None:
    recorder.observe(Read(number=1))
    whole = only_notes(tmp_path).stat().st_size
    recorder.observe(Read(number=2))
    data = only_notes(tmp_path).read_bytes()
    only_notes(tmp_path).write_bytes(data[: whole + kept if kept >= 0 else -1])
    assert observations(tmp_path) == [Read(rank=0, number=1)]
    assert read(tmp_path).partial == {0: "1 records were torn"}


@pytest.mark.parametrize(
    "damage",
    [
        b"\xc1" * 40,
        b'["Read",{"number":"two"}]',
        b'["Read",{"samples":[1,[2]]}]',
        b'["Read"]',
        b"[" * 100,
        b"7",
    ],
)
def test_a_damaged_note_is_told_as_torn(
    recorder: Recorder, tmp_path: Path, damage: bytes
) -> None:
    recorder.observe(Read(rank=-1))
    size = only_notes(tmp_path).stat().st_size
    only_notes(tmp_path).write_bytes(damage.ljust(size))
    assert not observations(tmp_path)
    assert read(tmp_path).partial == {0: "1 records were torn"}


def test_a_note_without_its_file_is_told_as_torn(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.observe(Read(rank=-1))
    only_notes(tmp_path).unlink()
    assert not observations(tmp_path)
    assert read(tmp_path).partial == {0: "1 records were torn"}


def test_kinds_and_fields_of_a_later_release_are_passed_over(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.observe(Read(number=1))
    file = only_notes(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"number", b"letter"))
    assert observations(tmp_path) == [Read(rank=0)]
    file.write_bytes(data.replace(b"Read", b"Rose"))
    assert not observations(tmp_path)
    assert not read(tmp_path).partial


def test_there_is_an_end_to_what_one_process_may_write(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.observe(Read(number=1))
    monkeypatch.setattr(notes, "MOST_BYTES", only_notes(tmp_path).stat().st_size + 9)
    with pytest.raises(OSError, match="bytes of notes"):
        recorder.observe(Read(number=2))
    assert observations(tmp_path) == [Read(rank=0, number=1)]


def test_a_child_leaves_its_parents_notes_alone(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.observe(Read(number=1))
    recorder.forked()
    recorder.observe(Read(number=2))
    assert observations(tmp_path) == [Read(rank=0, number=1)]


def test_a_process_that_turns_to_another_run_begins_new_notes(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.observe(Read(number=1))
    (tmp_path / "next").mkdir()
    recorder.begin_run(tmp_path / "next", 0, 1)
    recorder.observe(Read(number=2))
    assert observations(tmp_path) == [Read(rank=0, number=1)]
    assert observations(tmp_path / "next") == [Read(rank=0, number=2)]
