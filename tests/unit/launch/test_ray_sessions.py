"""The folder that Ray is given for its sessions, and what becomes of it."""

import os
from pathlib import Path

import pytest

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.folder import MANIFEST
from distdoctor.journal.layout import RAY_FILE
from distdoctor.launch.broken_off import finish_for
from distdoctor.launch.ray_sessions import (
    make_likewise,
    make_ray_folder,
    remove_ray_folder,
)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def filled(variables: dict[str, str]) -> Path:
    """The folder, with what a Ray that was killed leaves in it."""
    folder = Path(variables["RAY_TMPDIR"])
    (folder / "ray" / "session_1" / "logs").mkdir(parents=True)
    return folder


def test_it_goes_with_the_job(record: Path) -> None:
    folder = filled(make_ray_folder(record, {}))
    assert folder.stat().st_mode & 0o777 == 0o700
    remove_ray_folder(record)
    assert not folder.exists()
    assert not list(record.iterdir())


def test_it_goes_when_the_supervisor_was_killed(record: Path) -> None:
    (record / MANIFEST).write_text("{}")
    folder = filled(make_ray_folder(record, {}))
    finish_for([], f"{FOLDER_VARIABLE}={record}")()
    assert not folder.exists()


def test_ray_stays_where_the_user_has_it(record: Path) -> None:
    assert not make_ray_folder(record, {"RAY_TMPDIR": "/data/ray"})


def test_a_cluster_that_runs_is_found_where_ray_looks_for_it(record: Path) -> None:
    (record / "ray").mkdir()
    (record / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert not make_ray_folder(record, {"TMPDIR": str(record)})


def test_names_of_sockets_are_not_too_long(record: Path) -> None:
    deep = record / "so-long-a-folder-for-temporary-files"
    deep.mkdir()
    assert not make_ray_folder(record, {"TMPDIR": str(deep)})
    assert not list(deep.iterdir())


def test_no_other_folder_is_removed(record: Path) -> None:
    (record / "mine").mkdir()
    (record / RAY_FILE).write_text(os.fspath(record / "mine"))
    remove_ray_folder(record)
    assert (record / "mine").is_dir()


def test_another_node_has_it_by_the_same_name(record: Path) -> None:
    folder = record / "tmp" / "dd-0"
    folder.parent.mkdir()
    make_likewise(record, str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "ray").mkdir()
    remove_ray_folder(record)
    assert [path.name for path in record.iterdir()] == ["tmp"]
    assert not list(folder.parent.iterdir())


def test_folders_above_it_that_ray_makes_go_with_it(record: Path) -> None:
    folder = record / "scratch" / "job" / "dd-0"
    make_likewise(record, str(folder))
    (folder / "ray").mkdir(parents=True)
    remove_ray_folder(record)
    assert not list(record.iterdir())


@pytest.mark.parametrize("name", ["dd-0", "mine", ""])
def test_what_others_have_made_stays(record: Path, name: str) -> None:
    (record / "dd-0").mkdir()
    (record / "mine").mkdir()
    make_likewise(record, str(record / name) if name else "")
    remove_ray_folder(record)
    assert {path.name for path in record.iterdir()} == {"dd-0", "mine"}
