"""The command `records`, and folders of records that are refused or pruned."""

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from command_box import Box

from distdoctor.checking.record_folders import record_folder, records, tidy
from distdoctor.cli import app
from distdoctor.errors import LaunchRefused
from distdoctor.journal import folder as record
from distdoctor.journal.folder import Manifest
from distdoctor.journal.layout import LOCK_FILE
from distdoctor.journal.private_files import make_private_folder
from distdoctor.report.record_list import RecordList


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of records that nobody gave a folder for, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DISTDOCTOR_RECORDS_DAYS", "DISTDOCTOR_RECORDS_GIB"):
        monkeypatch.delenv(name, raising=False)
    runs = records()
    runs.mkdir(parents=True)
    return runs


def kept(runs: Path, year: int, size: int = 0, verdict: str = "sick") -> Path:
    folder = make_private_folder(runs / f"{year}")
    manifest = Manifest(
        distdoctor="0.1",
        launch=[],
        directory="/",
        script="train.py",
        started=f"{year}-01-01T00:00:00+00:00",
        exit_code=1,
        verdict=verdict,
    )
    record.write(folder, record.MANIFEST, manifest)
    (folder / "rank-0.0.notes").write_bytes(os.urandom(size))
    return folder


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_user_without_a_home_is_told_to_give_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)

    def nobody(_: int) -> None:
        raise KeyError

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert records() == Path("/.cache/distdoctor/runs")
    monkeypatch.setattr(Path, "mkdir", refused)
    with (
        pytest.raises(LaunchRefused, match="set XDG_CACHE_HOME"),
        record_folder(None, "--record", ""),
    ):
        pass


def test_records_are_listed_with_what_is_known(runs: Path) -> None:
    kept(runs, 2024, 5 << 20)
    kept(runs, 2025, verdict="")
    first, second, last = run("records", "list").splitlines()
    assert first.split()[2] == "-"
    assert second.split()[2:] == ["sick", "5.0", "MiB", "train.py", f"{runs}/2024"]
    assert last.startswith("2 records in ")
    told = msgspec.json.decode(
        run("records", "list", "--format", "json"), type=RecordList
    )
    assert [(one.verdict, one.state) for one in told.records] == (
        [("", "kept"), ("sick", "kept")]
    )


def test_no_records_are_a_list_as_well(runs: Path) -> None:
    runs.rmdir()
    assert run("records", "list").startswith("0 records in ")
    assert json.loads(run("records", "list", "--format", "json"))["records"] == []


def test_a_name_of_a_script_cannot_control_the_terminal(runs: Path) -> None:
    folder = kept(runs, 2024)
    manifest = record.read_manifest(folder)
    manifest.script = "\x1b]0;x\x07.py"
    record.write(folder, record.MANIFEST, manifest)
    assert "\x1b" not in run("records", "list")


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([], {"2999"}),
        (["--older-than", "0"], {"2000", "2024", "2999"}),
        (["--older-than", "0", "--larger-than", "0.004"], {"2024", "2999"}),
        (["--dry-run"], {"2000", "2024", "2999"}),
    ],
)
def test_old_records_are_removed(
    runs: Path, arguments: list[str], left: set[str]
) -> None:
    for year in (2000, 2024, 2999):
        kept(runs, year, 2 << 20)
    (runs / "notes").mkdir()  # of the user's own
    told = run("records", "prune", *arguments)
    assert {path.name for path in runs.iterdir()} == {*left, "notes"}
    assert "of 3" in told


def test_a_run_makes_room_where_it_was_not_told_where_to_lie(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_private_folder(tmp_path / "own")
    kept(own, 2000)
    for year in (2000, 2001):
        kept(runs, year)
    monkeypatch.setenv("DISTDOCTOR_RECORDS_DAYS", "0")
    with record_folder(None, "--record") as folder:
        tidy(beside=folder)
        assert len(list(runs.iterdir())) == 3
    folder.rmdir()
    monkeypatch.delenv("DISTDOCTOR_RECORDS_DAYS")
    with record_folder(None, "--record") as folder:
        tidy(beside=folder)
        # The latest one stays: somebody may be about to look at it.
        assert set(runs.iterdir()) == {folder, runs / "2001"}
    assert (own / "2000").exists()


@pytest.mark.parametrize("value", ["abc", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_is_refused(
    runs: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("DISTDOCTOR_RECORDS_GIB", value)
    with (
        pytest.raises(LaunchRefused, match=r"RECORDS_GIB=.*: give a number"),
        record_folder(None, "--record"),
    ):
        pass
    assert list(runs.iterdir()) == []


@pytest.mark.usefixtures("runs")
def test_the_folder_is_locked_while_it_is_written() -> None:
    with record_folder(None, "--record") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / LOCK_FILE).exists()
        assert "running" in run("records", "list")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(box: Box, mode: int) -> None:
    box.write("print(1)\n")
    (box.folder / "shared").mkdir()
    (box.folder / "shared").chmod(mode)
    for arguments in (
        ["check", "train.py", "--record", "shared"],
        ["record", "--to", "shared", "--", "true"],
    ):
        status, out, err = box.run(*arguments)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert f"shared may be written to by others (mode {mode:04o})" in err
        assert list((box.folder / "shared").iterdir()) == []


def test_a_new_folder_in_a_shared_one_is_ours_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with record_folder(tmp_path / "a" / "b", "--record") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_that_the_user_gives_is_followed_once(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    with record_folder(tmp_path / "link", "--record") as folder:
        assert folder == tmp_path / "scratch"


def test_the_default_place_is_closed_to_others(runs: Path) -> None:
    runs.chmod(0o777)
    with record_folder(None, "--record"):
        assert stat.S_IMODE(runs.stat().st_mode) == 0o700
