"""Processes that failed before they had a rank, and where parents learnt of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import offset_of
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import BadAddress, Ended, Failure, Place
from distdoctor.model.run import Run

DIRECTORY = "/job"

Starts = Callable[..., None]


@pytest.fixture
def start(tmp_path: Path) -> Starts:
    """Leaves the journal of a process, with a rank or (-1) without, that failed."""
    numbers = iter(range(101, 200))

    def leave(rank: int, world_size: int = 0, error: str = "", line: int = 5) -> None:
        writer = JournalWriter(tmp_path, rank, world_size, 64 * 1024)
        with writer.path.open("r+b") as file:
            file.seek(offset_of("pid"))
            file.write(next(numbers).to_bytes(4, "little"))
        if error:
            note = {"what": "fail", "error": error, "message": "", "fatal": True}
            site = f"{DIRECTORY}/t.py\n{line}\nmain"
            text = json.dumps({**note, "site": site, "secondary": False})
            writer.put(11, 1, spec=writer.intern(text))

    return leave


def run_of(folder: Path, **rest: object) -> Run:
    fields = {"distdoctor": "0", "launch": [], "directory": DIRECTORY} | rest
    return assemble(folder, Manifest(**fields))  # type: ignore[arg-type]


def failed(run: Run) -> list[int]:
    return [rank for rank in run.seen if run.of(Failure, rank)]


def test_the_process_that_failed_is_the_rank_that_is_missing(
    start: Starts, tmp_path: Path
) -> None:
    start(0, 2)
    start(-1, error="OSError")
    run = run_of(tmp_path, exit_code=1)
    assert (failed(run), run.outside, dict(run.unseen)) == ([1], (), {})


def test_while_others_may_come_nobody_is_taken_for_a_rank(
    start: Starts, tmp_path: Path
) -> None:
    start(0, 2)
    start(-1, error="OSError")
    assert failed(run_of(tmp_path)) == []
    assert failed(run_of(tmp_path, closed=True)) == [1]


def test_as_many_that_failed_alike_as_ranks_are_missing_are_these(
    start: Starts, tmp_path: Path
) -> None:
    start(-1, error="OSError")
    start(-1, error="OSError")
    assert failed(run_of(tmp_path, exit_code=1, ranks=2)) == [0, 1]


@pytest.mark.parametrize(
    "strays",
    [
        [("OSError", 5)],
        [("OSError", 5), ("KeyError", 5)],
        [("OSError", 5), ("OSError", 6)],
        [("OSError", 5)] * 3,
    ],
)
def test_who_was_which_rank_is_not_guessed(
    start: Starts, tmp_path: Path, strays: list[tuple[str, int]]
) -> None:
    for error, line in strays:
        start(-1, error=error, line=line)
    run = run_of(tmp_path, exit_code=1, ranks=2)
    assert failed(run) == []
    assert [one.error for one in run.outside] == [error for error, _ in strays]


def test_a_parent_is_no_rank_and_is_told_last(start: Starts, tmp_path: Path) -> None:
    start(-1, error="SpawnError")
    start(-1, error="OSError")
    exits = {"pid": 102, "status": 1, "by": 101}
    (tmp_path / EXITS_FILE).write_text(json.dumps(exits) + "\n")
    run = run_of(tmp_path, exit_code=1)
    assert [one.error for one in run.outside] == ["OSError", "SpawnError"]
    run = run_of(tmp_path, exit_code=1, ranks=1)
    assert [one.error for one in run.of(Failure, 0)] == ["OSError"]


def test_the_line_of_the_parent_is_kept(start: Starts, tmp_path: Path) -> None:
    start(0, 1)
    exits = {"pid": 101, "status": 3, "by": 9, "site": f"{DIRECTORY}/run.py\n9\nmain"}
    (tmp_path / EXITS_FILE).write_text(json.dumps(exits) + "\n")
    (end,) = run_of(tmp_path).of(Ended, 0)
    assert (end.status, end.place) == (3, Place("run.py", 9, "main"))


@pytest.mark.parametrize(("fault", "kept"), [("taken", 1), ("of a later release", 0)])
def test_a_bad_address_is_read(tmp_path: Path, fault: str, kept: int) -> None:
    writer = JournalWriter(tmp_path, 0, 1, 64 * 1024)
    note = {"what": "address", "fault": fault, "address": "a:1", "given": "b:2"}
    site = writer.intern(f"{DIRECTORY}/t.py\n7\nmain")
    text = json.dumps({**note, "mended": False})
    writer.put(11, 1, spec=writer.intern(text), site=site)
    events = run_of(tmp_path).of(BadAddress, 0)
    assert len(events) == kept
    for event in events:
        assert (event.address, event.given, event.mended) == ("a:1", "b:2", False)
        assert event.place == Place("t.py", 7, "main")
