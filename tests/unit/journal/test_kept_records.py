"""Kept records: what is one, which may go, and what a killed run leaves behind."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.journal import folder as record
from distdoctor.journal import record_lock
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import offset_of
from distdoctor.journal.kept_records import (
    KeptRecord,
    outdated,
    records_in,
    remove,
    trim_if_broken_off,
)
from distdoctor.journal.layout import LOCK_FILE
from distdoctor.journal.private_files import make_private_folder
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.record_lock import RecordLock, may_still_write
from distdoctor.journal.writer import JournalWriter

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def kept(days: float, size: int, **more: Any) -> KeptRecord:
    started = NOW - timedelta(days=days)
    return KeptRecord(folder=Path(f"{days}"), started=started, size_bytes=size, **more)


def written(top: Path, name: str = "one", **fields: object) -> Path:
    """A record folder with a manifest."""
    folder = make_private_folder(top / name)
    manifest = Manifest(distdoctor="0.1", launch=[], directory="/", script="train.py")
    manifest.started, manifest.exit_code = NOW.isoformat(timespec="seconds"), 0
    for field, value in fields.items():
        setattr(manifest, field, value)
    record.write(folder, record.MANIFEST, manifest)
    return folder


def of_a_killed_run(top: Path, pid: int = 0) -> Path:
    """The record of a run that was killed, whose rank has written little."""
    folder = written(top, exit_code=None)
    RecordLock(folder)  # its file stays; the lock goes with the process
    writer = JournalWriter(folder, 0, 1, 16 << 20)
    writer.put(1)
    if pid:
        _told_by(writer, pid)
    return folder


def _told_by(writer: JournalWriter, pid: int) -> None:
    writer._map[offset_of("pid") : offset_of("pid") + 4] = pid.to_bytes(4, "little")


@pytest.fixture
def dead() -> int:
    """Number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


# --- which may go ---


def test_what_is_older_goes_and_the_latest_stays() -> None:
    records = [kept(1, 1), kept(29, 1), kept(31, 1), kept(400, 1)]
    assert [one.folder.name for one in outdated(records, NOW, days=30)] == ["400", "31"]
    assert outdated([kept(400, 1)], NOW, days=30) == []
    assert outdated(records, NOW) == []


def test_the_oldest_go_until_the_rest_is_small_enough() -> None:
    records = [kept(1, 50), kept(2, 30), kept(3, 30), kept(4, 30)]
    going = outdated(records, NOW, size_bytes=100)
    assert [one.folder.name for one in going] == ["4", "3"]
    assert [one.folder.name for one in outdated(records, NOW, size_bytes=1)] == (
        ["4", "3", "2"]
    )


def test_who_writes_and_who_holds_files_of_the_users_stays() -> None:
    records = [kept(50, 9, lives=True), kept(60, 9, holds_users_files=True), kept(1, 9)]
    assert outdated(records, NOW, days=30, size_bytes=1) == []


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 99), st.booleans())),
    st.floats(0, 100),
    st.floats(0, 500),
)
def test_nothing_goes_that_may_stay(
    drawn: list[tuple[float, int, bool]], days: float, size: float
) -> None:
    records = [kept(age, size, lives=lives) for age, size, lives in drawn]
    going = outdated(records, NOW, days, size)
    assert all(one.may_go for one in going)
    gone = set(map(id, going))  # two may be alike
    left = sum(one.size_bytes for one in records if id(one) not in gone)
    before = left + sum(one.size_bytes for one in going)
    for one in going:  # each was too old, or what was there with it was too much
        is_old = 0 < days < (NOW - one.started) / timedelta(days=1)
        assert is_old or (size and before > size)
        before -= one.size_bytes


# --- what is a record ---


def test_a_record_is_listed_with_what_is_known(tmp_path: Path) -> None:
    folder = written(tmp_path, verdict="sick")
    (one,) = records_in(tmp_path)
    assert (one.folder, one.script, one.verdict) == (folder, "train.py", "sick")
    assert (one.started, one.lives, one.broken_off) == (NOW, False, False)
    assert one.size_bytes > 0


def test_the_latest_comes_first(tmp_path: Path) -> None:
    written(tmp_path, "a")
    written(tmp_path, "b", started="2026-06-01T00:00:00+00:00")
    written(tmp_path, "c", started="2026-04-01T00:00:00")
    assert [one.folder.name for one in records_in(tmp_path)] == ["b", "a", "c"]


def test_what_is_no_record_of_ours_is_not_listed(tmp_path: Path) -> None:
    elsewhere = make_private_folder(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    (tmp_path / "link").symlink_to(written(elsewhere))
    (tmp_path / "file").write_text("distdoctor.record/1")
    (tmp_path / "empty").mkdir()
    for name, text in (("json", '{"schema": "other"}'), ("text", "run")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run.json").symlink_to(elsewhere / "one" / "run.json")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    assert records_in(tmp_path) == []
    assert records_in(tmp_path / "gone") == []


def test_the_record_of_another_release_is_one(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    manifest = {"schema": "distdoctor.record/9", "script": 3}
    (tmp_path / "new" / "run.json").write_text(json.dumps(manifest))
    (one,) = records_in(tmp_path)
    assert one.script == ""


def test_a_record_is_removed_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    folder = written(tmp_path)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (folder / "link").symlink_to(precious)
    assert remove(records_in(tmp_path)[0])
    assert not folder.exists()
    assert (precious / "file").exists()


def test_files_that_could_not_be_put_back_are_seen(tmp_path: Path) -> None:
    (written(tmp_path) / "kept").mkdir()
    assert records_in(tmp_path)[0].holds_users_files


# --- who may still write ---


def test_a_run_that_goes_on_is_not_touched(tmp_path: Path) -> None:
    folder = written(tmp_path, exit_code=None)
    lock = RecordLock(folder)
    (one,) = records_in(tmp_path)
    assert one.lives
    assert not remove(one)
    trim_if_broken_off(folder)
    assert folder.exists()
    lock.release()
    assert not (folder / LOCK_FILE).exists()


def test_ranks_that_outlive_distdoctor_may_write(tmp_path: Path) -> None:
    folder = of_a_killed_run(tmp_path, os.getpid())
    size = (folder / "rank-0.0.journal").stat().st_size
    as_if_killed(folder)
    assert records_in(tmp_path)[0].lives
    trim_if_broken_off(folder)
    assert (folder / "rank-0.0.journal").stat().st_size == size


def as_if_killed(folder: Path) -> None:
    """Let nobody hold the lock, as when its process was killed."""
    told = (folder / LOCK_FILE).read_bytes()
    (folder / LOCK_FILE).unlink()
    (folder / LOCK_FILE).write_bytes(told)


def test_the_number_of_a_rank_that_another_has_by_now_is_no_rank(
    tmp_path: Path,
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        folder = of_a_killed_run(tmp_path, other.pid)
        as_if_killed(folder)
        assert record_lock._lives(other.pid, 1e12)
        assert not record_lock._lives(other.pid, 0.0)
        assert may_still_write(folder, concluded=False)
    finally:
        other.communicate()
    assert not may_still_write(folder, concluded=False)


def test_a_run_of_another_machine_is_dead_once_it_is_quiet(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_a_killed_run(tmp_path, dead)
    (folder / LOCK_FILE).unlink()
    (folder / LOCK_FILE).write_text('{"host": "another", "boot": ""}')
    assert may_still_write(folder, concluded=False)
    monkeypatch.setattr(record_lock, "QUIET_S", -10.0)
    assert not may_still_write(folder, concluded=False)
    # To cut its journals would be too much, though: it may hang, and be looked at.
    size = (folder / "rank-0.0.journal").stat().st_size
    trim_if_broken_off(folder)
    assert (folder / "rank-0.0.journal").stat().st_size == size


def test_a_machine_that_was_started_anew_has_none_of_the_old_processes(
    tmp_path: Path,
) -> None:
    folder = of_a_killed_run(tmp_path, os.getpid())
    told = json.loads((folder / LOCK_FILE).read_text())
    (folder / LOCK_FILE).unlink()
    (folder / LOCK_FILE).write_text(json.dumps(told | {"boot": "before"}))
    assert not may_still_write(folder, concluded=False)


def test_a_folder_that_was_just_made_is_left_alone(tmp_path: Path) -> None:
    folder = written(tmp_path, exit_code=None)
    assert may_still_write(folder, concluded=False)
    os.utime(folder, (0, 0))
    os.utime(folder / "run.json", (0, 0))
    assert not may_still_write(folder, concluded=False)


# --- what a killed run leaves ---


def test_the_record_of_a_killed_run_shrinks_to_what_was_written(
    tmp_path: Path, dead: int
) -> None:
    folder = of_a_killed_run(tmp_path, dead)
    make_private_folder(folder / "boards")
    (folder / "boards" / "a").write_bytes(bytes(1 << 20))
    as_if_killed(folder)
    (before,) = records_in(tmp_path)
    assert before.broken_off
    assert before.size_bytes > 16 << 20
    trim_if_broken_off(folder)
    (after,) = records_in(tmp_path)
    assert after.size_bytes < 64 * 1024
    assert (after.broken_off, after.lives) == (True, False)
    assert len(JournalReader(folder / "rank-0.0.journal").last()) == 1


def test_a_damaged_journal_stays_as_it_is(tmp_path: Path, dead: int) -> None:
    folder = of_a_killed_run(tmp_path, dead)
    as_if_killed(folder)
    journal = folder / "rank-0.0.journal"
    os.truncate(journal, 4096 + 100)  # the ring is not there
    content = journal.read_bytes()
    trim_if_broken_off(folder)
    assert journal.read_bytes() == content


def test_who_ends_a_job_can_trim_it_by_the_standard_library_alone(
    tmp_path: Path, dead: int
) -> None:
    folder = of_a_killed_run(tmp_path, dead)
    program = (
        "import sys\n"
        f"sys.path.append({str(Path(__file__).parents[3])!r})\n"
        "from pathlib import Path\n"
        "from distdoctor.journal.trimming import trim_record\n"
        f"trim_record(Path({str(folder)!r}))\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
    assert (folder / "rank-0.0.journal").stat().st_size < 64 * 1024
