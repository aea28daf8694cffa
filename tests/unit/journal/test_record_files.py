"""A file that was lost of a record is missed: nothing is taken for well without it."""

import json
from pathlib import Path

import pytest
from hostile_inputs import Case
from hostile_records import place, remove, seeds

from distdoctor.errors import RecordUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.folder import MANIFEST, Manifest, read_manifest
from distdoctor.journal.layout import COMPARISON_FILE, NCCL_FOLDER
from distdoctor.journal.record_files import seal
from distdoctor.judging import judge

RESTING_ON = {
    "dd108_skipped_collective": "journals",
    "dd204_stuck_in_user_code": "stacks",
    "dd301_same_samples": "notes",
    "dd306_shared_worker_streams": "streams",
    "dd308_unrepeatable_seed": "a comparison",
    "dd508_piled_hooks": "sources",
    "dd613_ignored_dead_ranks": "ends of processes",
}
"""Patients whose disease is told by files of these kinds."""


def patients() -> dict[str, Case]:
    """Records of sick runs, by their patients."""
    found: dict[str, Case] = {}
    for case in seeds():
        patient = Path(json.loads(case[MANIFEST])["launch"][-2]).stem
        if patient != "dd308_unrepeatable_seed" or COMPARISON_FILE in case:
            found.setdefault(patient, case)
    return found


PATIENTS = patients()


def placed(case: Case, folder: Path) -> Path:
    for name, content in case.items():
        place(folder / name, content)
    return folder


def verdict(folder: Path) -> str:
    try:
        return judge(folder).report.verdict
    except RecordUnreadable:
        return "unreadable"


def gaps(folder: Path) -> dict[str, str]:
    return {gap.what: gap.why for gap in judge(folder).report.not_examined}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A record whose manifest lists its files."""
    folder = placed(PATIENTS["dd306_shared_worker_streams"], tmp_path / "record")
    seal(folder, read_manifest(folder))
    return folder


@pytest.mark.parametrize("patient", RESTING_ON)
def test_no_file_of_a_sick_run_is_lost_without_a_word(
    patient: str, tmp_path: Path
) -> None:
    case = PATIENTS[patient]
    folder = placed(case, tmp_path / "record")
    seal(folder, read_manifest(folder))
    assert verdict(folder) == "sick"
    manifest = (folder / MANIFEST).read_bytes()
    for name, content in {**case, MANIFEST: manifest}.items():
        remove(folder / name)
        assert verdict(folder) != "well", name
        place(folder / name, b"")
        assert verdict(folder) != "well", f"{name} without content"
        place(folder / name, content)
    assert verdict(folder) == "sick"


def test_a_record_of_an_earlier_release_tells_that_a_comparison_is_lost(
    tmp_path: Path,
) -> None:
    folder = placed(PATIENTS["dd308_unrepeatable_seed"], tmp_path / "record")
    manifest = read_manifest(folder)
    manifest.files = {}
    record.write(folder, MANIFEST, manifest)
    remove(folder / COMPARISON_FILE)
    assert verdict(folder) == "unknown"
    assert "the file is missing" in gaps(folder)[f"what {COMPARISON_FILE} tells"]


def test_what_was_lost_or_cut_is_told_by_name(sealed: Path) -> None:
    streams = sealed / "streams.jsonl"
    content = streams.read_bytes()
    streams.write_bytes(content[:100])
    assert f"it had {len(content)} bytes" in gaps(sealed)["what streams.jsonl tells"]
    remove(streams)
    assert "it was there" in gaps(sealed)["what streams.jsonl tells"]


def test_files_that_grew_or_came_later_are_nothing_to_tell_of(sealed: Path) -> None:
    with (sealed / "exits.jsonl").open("ab") as file:
        file.write(b'{"pid": 8, "status": 0}\n')
    (sealed / "nccl-logs.jsonl").touch()
    assert not [what for what in gaps(sealed) if what.startswith("what ")]


def test_a_rank_without_a_journal_is_told_once(sealed: Path) -> None:
    remove(sealed / "rank-1.0.journal")
    told = gaps(sealed)
    assert "rank 1" in told
    assert "what rank-1.0.journal tells" not in told


def test_a_lost_log_of_nccl_is_told(sealed: Path) -> None:
    place(sealed / NCCL_FOLDER / "host.7.log", b"host:7:7 [0] NCCL INFO x\n")
    seal(sealed, read_manifest(sealed))
    remove(sealed / NCCL_FOLDER)
    assert "it was there" in gaps(sealed)["what nccl/host.7.log tells"]


def test_many_lost_files_are_told_in_short(sealed: Path) -> None:
    manifest = read_manifest(sealed)
    manifest.files |= {f"rank-0.{n}.journal": 0 for n in range(1, 5000)}
    record.write(sealed, MANIFEST, manifest)
    assert "each of 4989 other files" in " ".join(gaps(sealed))
    assert len(gaps(sealed)) < 30


def test_the_list_names_no_file_of_a_run_that_still_goes_on(tmp_path: Path) -> None:
    manifest = Manifest(distdoctor="0.1", launch=[], directory="/")
    record.write(tmp_path, MANIFEST, manifest)
    (tmp_path / "running.lock").touch()
    (tmp_path / "loaders.0.log").touch()
    (tmp_path / ".exits.jsonl.7.draft").touch()
    place(tmp_path / "kept" / "kept.jsonl", b"x")
    seal(tmp_path, manifest)
    assert read_manifest(tmp_path).files == {}
