"""Files and folders of a record: their owner's alone, and never behind a link."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.notes import NotesWriter
from distdoctor.journal.own_file import OwnFile
from distdoctor.journal.private_files import (
    append_line,
    make_private_folder,
    open_private,
    replace_private,
    sharing_problem,
    write_private,
)
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.data import Read
from distdoctor.probes import NEEDLE
from distdoctor.probes.recorder import Recorder


@pytest.fixture(params=[0o000, 0o002, 0o077, 0o277, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "record").mkdir(mode=0o700)
    return tmp_path / "record"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("umask")
def test_the_umask_changes_nothing(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "record")
    inner = make_private_folder(folder / "inner")
    write_private(inner / "a", b"1", below=2)
    append_line(folder / "b", "2")
    replace_private(folder / "c", b"3")
    assert {mode_of(path) for path in (folder, inner)} == {0o700}
    assert {mode_of(inner / "a"), mode_of(folder / "b"), mode_of(folder / "c")} == (
        {0o600}
    )


@pytest.mark.usefixtures("umask")
def test_what_ranks_write_is_their_owners_alone(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "record")
    recorder = Recorder()
    recorder.folder = folder
    recorder.open(0, 2)
    recorder.observe(Read(number=1))
    recorder.exit_of(1, 0)
    recorder.substituted("cuda")
    recorder._loss_reported = False
    recorder.lose("probe", ValueError())
    recorder.close()
    found = {path.name: path for path in folder.rglob("*")}
    assert found.keys() >= {"rank-0.0.journal", "rank-0.0.notes", "exits.jsonl"}
    for path in found.values():
        assert mode_of(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775, 0o757, 0o1777, 0o2770])
def test_a_folder_that_others_may_write_to_is_not_written_to(
    folder: Path, mode: int
) -> None:
    folder.chmod(mode)
    assert f"mode {mode:04o}" in sharing_problem(folder)
    for write in (
        lambda: JournalWriter(folder, 0, 1, 64 * 1024),
        lambda: NotesWriter(folder / "rank-0.0.journal"),
        lambda: append_line(folder / "exits.jsonl", "{}"),
        lambda: make_private_folder(folder / "boards"),
        lambda: open_private(folder / "a" / "b", os.O_RDONLY, below=2),
    ):
        with pytest.raises(PermissionError, match="written to by others"):
            write()
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_elses_is_not_written_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(PermissionError, match="another user"):
        append_line(folder / "exits.jsonl", "{}")
    assert list(folder.iterdir()) == []


def test_a_folder_that_was_swapped_for_a_link_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    for write in (
        lambda: JournalWriter(folder, 0, 1, 64 * 1024),
        lambda: append_line(folder / "exits.jsonl", "{}"),
        lambda: replace_private(folder / "run.json", b"{}"),
        lambda: make_private_folder(folder / "boards"),
        lambda: make_private_folder(folder),
    ):
        with pytest.raises(OSError, match=r"Not a directory|symbolic"):
            write()
    assert list(elsewhere.iterdir()) == []


def test_a_folder_in_it_that_was_swapped_for_a_link_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "stacks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        make_private_folder(folder / "stacks")
    flags = os.O_WRONLY | os.O_CREAT
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        OwnFile(folder / "stacks" / "1.txt", flags, below=2)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_only_a_regular_file_is_opened(folder: Path, tmp_path: Path, kind: str) -> None:
    path, target = folder / "exits.jsonl", tmp_path / "precious"
    match kind:
        case "link":
            target.write_bytes(b"data")
            path.symlink_to(target)
        case "dangling":
            path.symlink_to(target)
        case "pipe":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(OSError, match=r"symbolic|regular|directory|No such device"):
        append_line(path, "{}")
    assert not target.exists() or target.read_bytes() == b"data"


def test_a_link_is_replaced_and_not_written_through(
    folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"data")
    (folder / "run.json").symlink_to(target)
    replace_private(folder / "run.json", b"{}")
    assert target.read_bytes() == b"data"
    assert not (folder / "run.json").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_who_hears_of_opened_files_is_told_where_they_lie(folder: Path) -> None:
    """A name that is relative to a folder would be taken for one of the job's own."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from distdoctor.journal.private_files import append_line\n"
        "heard = []\n"
        "def hear(event, args):\n"
        "    if event == 'open' and args[2] & os.O_WRONLY:\n"
        "        heard.append(os.path.realpath(args[0]))\n"
        "sys.addaudithook(hear)\n"
        f"append_line(Path({str(folder)!r}, 'exits.jsonl'), '')\n"
        "print(heard[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(folder / "exits.jsonl")


def test_a_rank_goes_on_where_its_record_may_not_be_written(folder: Path) -> None:
    folder.chmod(0o777)
    environment = {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(NEEDLE)}
    done = subprocess.run(
        [sys.executable, "-c", "print('goes on')"],
        env=os.environ | environment | {FOLDER_VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "goes on\n"
    assert list(folder.iterdir()) == []
