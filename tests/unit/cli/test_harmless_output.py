"""Nothing that is printed can control a terminal, whatever it quotes."""

from pathlib import Path

import pytest

from distdoctor import cli
from distdoctor.cli import main
from distdoctor.journal import folder as record
from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import joined
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import Failure, Started
from distdoctor.report.formats import FORMATS

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


def said(
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["distdoctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    for text in (out, err):
        assert text.replace("\n", "").isprintable(), text
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.mark.parametrize(
    "arguments",
    [
        [EVIL],
        [f"--{EVIL}"],
        ["examine"],
        ["examine", EVIL],
        ["examine", EVIL, EVIL],
        ["examine", ".", "--format", EVIL],
        ["examine", ".", f"--{EVIL}"],
        ["autopsy", EVIL],
        ["explain", EVIL],
        ["check", EVIL],
        ["check", "t.py", "-n", EVIL],
        ["check", "t.py", "--launcher", EVIL],
        ["columns", EVIL, "--into", EVIL],
    ],
    ids=repr,
)
def test_a_wrong_command_line_is_quoted_without_control_characters(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = said(arguments, capsys, monkeypatch)
    assert (status, out) == (2, "")
    assert "Traceback" not in err


def test_a_folder_in_the_place_of_a_report_is_quoted_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "\x1b[31mred"
    taken.mkdir()
    arguments = ["examine", ".", "--output", str(taken)]
    status, _, err = said(arguments, capsys, monkeypatch)
    assert status == 2
    assert "\\x1b[31mred" in err


def test_a_fault_of_ours_is_told_likewise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise KeyError("\x1b[31m" + EVIL, "\n\x1b")

    monkeypatch.setattr(cli, "app", fail)
    assert said(["env"], capsys, monkeypatch)[0] == 3


def test_what_a_record_says_is_told_likewise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / EVIL
    folder.mkdir()
    manifest = Manifest(
        distdoctor=f"0.1{EVIL}",
        launch=["t.py", EVIL],
        script=f"{EVIL}.py",
        directory="/job",
        ranks=2,
        exit_code=1,
        last_words=EVIL,
        remarks=[EVIL],
    )
    record.write(folder, record.MANIFEST, manifest)
    record.write(folder, record.SOURCES, {f"{EVIL}.py": f"x = '{EVIL}'\n" * 9})
    (folder / "exits.jsonl").write_text(f'{EVIL}"\n')
    for rank in (0, 1):
        writer = JournalWriter(folder, rank, 2, 16 * 1024)
        started = event_text(Started(world_size=2, torch=EVIL, backend=EVIL))
        writer.put(RecordKind.LIFE, 1, spec=writer.intern(started))
        failure = event_text(Failure(error=EVIL, message=f"{EVIL}\n{EVIL}"))
        site = writer.intern(joined(f"/job/{EVIL}.py", "3", EVIL))
        writer.put(RecordKind.LIFE, 1, site=site, spec=writer.intern(failure))
        writer.end()
    for form in FORMATS:
        arguments = ["examine", str(folder), "--format", form, "--verbose"]
        status, out, _ = said(arguments, capsys, monkeypatch)
        assert status in {1, 4}
        assert "owned" in out
