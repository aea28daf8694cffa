"""`distdoctor watch` by its command line: what it refuses, and one look as text."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from click.testing import CliRunner, Result
from written_records import written

from distdoctor.cli import app, watch
from distdoctor.errors import DistdoctorError, LeavingsMissing, NothingToWatch
from distdoctor.journal.layout import LOCK_FILE
from distdoctor.watching import running_records
from distdoctor.watching.snapshot import Snapshot


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.0)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["watch", *arguments])


def refusal(*arguments: str) -> DistdoctorError:
    error = asked(*arguments).exception
    assert isinstance(error, DistdoctorError)
    return error


@contextmanager
def holder(folder: Path, *words: str) -> Iterator[int]:
    """A process with these words in its command line that holds a record's lock."""
    program = (
        "import fcntl, sys, time\n"
        f"file = open({str(folder / LOCK_FILE)!r}, 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('holds', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_record_that_is_written_is_found_by_its_open_lock(tmp_path: Path) -> None:
    written(tmp_path, 1)
    with holder(tmp_path, "/bin/distdoctor", "record", "x") as pid:
        found = [r for r in running_records.running_records() if r.folder == tmp_path]
        assert [(one.pid, one.by) for one in found] == [(pid, "record")]
        with (tmp_path / LOCK_FILE).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert running_records.writer_of(tmp_path) is None


def test_the_newest_job_comes_first(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        written(folder, 1)
    with holder(first, "distdoctor", "check"), holder(second, "distdoctor", "check"):
        found = [one.folder for one in running_records.running_records()]
        mine = [one for one in found if tmp_path in one.parents]
    assert set(mine) == {first, second}


def test_without_a_job_one_sentence_says_what_to_give() -> None:
    with mock.patch.object(running_records, "running_records", list):
        error = refusal("--once")
    assert "no job of this user runs under `distdoctor check`" in str(error)
    assert isinstance(error, NothingToWatch)


def test_of_several_jobs_once_wants_one_named(tmp_path: Path) -> None:
    some = [
        running_records.RunningRecord(tmp_path / name, 1, "check", 0.0)
        for name in ("a", "b")
    ]
    with mock.patch.object(running_records, "running_records", return_value=some):
        error = refusal("--once")
    assert str(error) == f"2 jobs run now: give one of {tmp_path}/a; {tmp_path}/b"


def test_once_prints_text_and_json(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting")
    text = asked("--once", str(tmp_path))
    assert text.exit_code == 0
    assert "rank" in text.output
    made = asked("--once", "--format", "json", str(tmp_path))
    seen = msgspec.json.decode(made.output, type=Snapshot)
    assert seen.schema == "distdoctor.watch/1"
    assert [one.rank for one in seen.ranks] == [0, 1]
    assert json.loads(made.output)["ranks"][0]["doing"] in {"waiting", "died"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "json"], "--format goes with --once"),
        (["--once", "1", "."], "give process numbers, or one folder, not both"),
        (["--once", ".", ".."], "give one folder"),
        (["--once", "--every", "0", "."], "is not in the range"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(arguments: list[str], words: str) -> None:
    result = asked(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    assert "holds no run.json" in str(refusal("--once", str(tmp_path)))
    assert "is not a folder" in str(refusal("--once", str(tmp_path / "none")))


@pytest.mark.parametrize("pid", ["4194303", "99999999999999999999"])
def test_a_process_that_is_not_there_is_told(pid: str) -> None:
    error = refusal("--once", pid)
    assert isinstance(error, LeavingsMissing)
    assert "there is no process" in str(error)


def test_where_there_is_no_terminal_once_is_named() -> None:
    assert "--once" in str(refusal("."))


@pytest.mark.parametrize("term", ["", "dumb"])
def test_a_terminal_that_cannot_be_drawn_on_is_none(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdout", mock.Mock(isatty=lambda: True))
    monkeypatch.setenv("TERM", term)
    with pytest.raises(NothingToWatch, match="--once"):
        watch._require_terminal()


def test_without_textual_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdout", mock.Mock(isatty=lambda: True))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NothingToWatch, match=r"pip install 'distdoctor\[watch\]'"):
        watch._require_terminal()


def test_one_look_needs_neither_textual_nor_torch(tmp_path: Path) -> None:
    written(tmp_path, 2)[0].call()
    program = (
        "import sys\n"
        "for name in ('textual', 'torch'): sys.modules[name] = None\n"
        "from distdoctor import cli\n"
        f"sys.argv[1:] = ['watch', '--once', {str(tmp_path)!r}]\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    assert "rank" in done.stdout
