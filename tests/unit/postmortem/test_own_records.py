"""Records of our own: whole, broken off, half copied, nested, several at once."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.cli import app
from distdoctor.journal import folder as record
from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind, offset_of
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import Left, Started
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP, signature
from distdoctor.postmortem.own_records import read_record, record_folders

WORLD = group_text("0", "default_pg", 0, (0, 1))
GONE = 2**22 + 5  # above the largest number of a process


def journal(
    folder: Path, rank: int, ops: list[str], *, waits: bool, leaves: bool = False
) -> None:
    """The journal of a rank that made these calls, and waits in the last, or not."""
    writer = JournalWriter(folder, rank, 2, 64 * 1024)
    me = os.getpid()
    for joined in (False, True):
        started = event_text(Started(world_size=2, joined=joined))
        writer.put(RecordKind.LIFE, me, spec=writer.intern(started))
    for number, op in enumerate(ops, start=1):
        code = CODE_OF[op]
        writer.put(
            RecordKind.ENTER,
            me,
            number,
            number,
            writer.intern(WORLD),
            signature(code, NO_REDUCE_OP, -1, (), ()),
            code,
            NO_REDUCE_OP,
            0,
            writer.intern("/job/t.py\n7\ntrain"),
            0,
            -1,
            0,
        )
        writer.put(RecordKind.RETURN, me, number)
        writer.put(RecordKind.WAIT, me, number)
        if number < len(ops) or not waits:
            writer.put(RecordKind.WOKE, me, number)
            writer.step()
    if leaves:
        writer.put(RecordKind.LIFE, me, spec=writer.intern(event_text(Left())))
        writer.end()


def manifest(folder: Path, **rest: object) -> None:
    fields = {"distdoctor": "0.1.0", "launch": ["t.py"], "directory": "/job"} | rest
    record.write(folder, record.MANIFEST, Manifest(**fields))  # type: ignore[arg-type]


@pytest.fixture
def well(tmp_path: Path) -> Path:
    """The record of a job that came to its end."""
    folder = tmp_path / "well"
    folder.mkdir()
    for rank in range(2):
        journal(folder, rank, ["barrier"] * 3, waits=False, leaves=True)
    manifest(folder, exit_code=0, started="2026-01-02")
    return folder


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    """The record of one whose ranks stand in different calls."""
    folder = tmp_path / "sick"
    folder.mkdir()
    journal(folder, 0, ["barrier"] * 3, waits=True)
    journal(folder, 1, ["barrier", "barrier", "all_reduce"], waits=True)
    me = [os.getpid()]
    manifest(folder, stopped="deadlock", alive=me, closed=True, started="2026-01-01")
    return folder


def autopsy(*paths: Path) -> Result:
    arguments = ["autopsy", *map(str, paths), "--format", "json"]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def report_on(*paths: Path) -> dict[str, object]:
    reported: dict[str, object] = json.loads(autopsy(*paths).stdout)
    return reported


def codes(report: dict[str, object]) -> list[str]:
    return [one["code"] for one in report["findings"]]  # type: ignore[attr-defined]


def test_a_record_gets_the_verdict_of_the_live_run(well: Path, sick: Path) -> None:
    assert report_on(well)["verdict"] == "well"
    report = report_on(sick)
    assert (report["verdict"], codes(report)) == ("sick", ["DD108"])


def test_it_may_lie_deep_among_other_files(sick: Path, tmp_path: Path) -> None:
    top = tmp_path / "job"
    shutil.move(sick, top / "a" / "b")
    (top / "notes.md").write_text("nothing")
    (top / "run.json").write_text('{"lr": 0.1}')  # of another program
    assert codes(report_on(top)) == ["DD108"]


def test_a_journal_stands_for_its_record(sick: Path) -> None:
    assert codes(report_on(sick / "rank-0.0.journal")) == ["DD108"]


@pytest.mark.usefixtures("sick")
def test_of_several_the_worst_is_told(well: Path, tmp_path: Path) -> None:
    report = report_on(tmp_path)
    assert codes(report) == ["DD108"]
    (remark,) = report["remarks"]  # type: ignore[misc]
    assert f"{well} is well" in remark  # type: ignore[has-type]


def test_who_was_ended_with_distdoctor_is_not_dead(tmp_path: Path) -> None:
    journal(tmp_path, 0, ["barrier"] * 3, waits=True)
    journal(tmp_path, 1, ["barrier"] * 2, waits=False)
    manifest(tmp_path)
    report = report_on(tmp_path)
    assert (report["verdict"], codes(report)) == ("unknown", [])
    assert "breaks off" in json.dumps(report["not_examined"])


def test_who_died_before_is(tmp_path: Path) -> None:
    journal(tmp_path, 0, ["barrier"] * 3, waits=True)
    journal(tmp_path, 1, ["barrier"] * 2, waits=False)
    with (tmp_path / "rank-1.0.journal").open("r+b") as file:
        file.seek(offset_of("pid"))
        file.write(GONE.to_bytes(4, "little"))
    (tmp_path / EXITS_FILE).write_text(json.dumps({"pid": GONE, "status": -9}) + "\n")
    manifest(tmp_path)
    report = report_on(tmp_path)
    assert (report["verdict"], codes(report)) == ("sick", ["DD202"])


def test_a_deadlock_shows_without_a_manifest(sick: Path) -> None:
    (sick / record.MANIFEST).unlink()
    assert codes(report_on(sick)) == ["DD108"]


@pytest.mark.parametrize("size", [0, 100, 5000, 20_000])
def test_a_rank_whose_journal_was_cut_off_is_not_blamed(well: Path, size: int) -> None:
    path = well / "rank-1.0.journal"
    path.write_bytes(path.read_bytes()[:size])
    report = report_on(well)
    assert (report["verdict"], codes(report)) == ("unknown", [])


def test_damaged_stacks_are_told_and_left_out(sick: Path) -> None:
    (sick / record.STACKS).write_text('[{"rank": ')
    report = report_on(sick)
    assert codes(report) == ["DD108"]
    assert "what stacks.json tells" in json.dumps(report["not_examined"])


def test_the_run_with_more_ranks_settles_a_tie(sick: Path, well: Path) -> None:
    shutil.move(well, sick / "with-3")
    assert record_folders([str(sick)]) == [sick / "with-3"]


def test_runs_that_were_compared_are_not_told_apart(sick: Path, well: Path) -> None:
    shutil.move(well, sick / "second")
    assert record_folders([str(sick)]) == [sick]


def test_output_beside_a_record_is_read_too(sick: Path) -> None:
    (sick / "job.log").write_text("step 1\n")
    assert codes(report_on(sick)) == ["DD108"]


def test_a_run_that_was_only_recorded_says_what_it_cannot_show(well: Path) -> None:
    manifest(well, exit_code=0, recorded=True)
    report = report_on(well)
    assert report["verdict"] == "well"
    assert "distdoctor record" in json.dumps(report["not_examined"])


@given(st.binary(max_size=400), st.integers(0, 4000))
def test_no_bytes_in_a_journal_make_it_fail(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int
) -> None:
    folder = tmp_path_factory.mktemp("record")
    journal(folder, 0, ["barrier"], waits=True)
    journal(folder, 1, ["barrier"], waits=True)
    path = folder / "rank-1.0.journal"
    data = path.read_bytes()
    path.write_bytes(data[:at] + content + data[at + len(content) :])
    read_record(folder)
