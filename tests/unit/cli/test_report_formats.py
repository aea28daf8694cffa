"""The option `--format`: several in one run, each where it belongs."""

import json
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree as Tree

import pytest
from click import UsageError
from click.testing import CliRunner, Result
from command_box import Box
from drawn_reports import FAILED, UNKNOWN, drawn
from unpacked_records import unpack

from distdoctor.checking.judged_run import Judged
from distdoctor.cli import app
from distdoctor.cli.options import ReportOptions
from distdoctor.cli.report_targets import ReportTarget, targets
from distdoctor.judging import Judgement
from distdoctor.report.formats import FORMATS


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two records in it: a sick run and an unknown one."""
    unpack("version_2.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examine(record: str, *arguments: str) -> Result:
    result = CliRunner().invoke(app, ["examine", record, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def formats(words: str) -> list[str]:
    return [part for word in words.split() for part in ("--format", word)]


def test_several_formats_go_each_into_a_file_of_its_own(records: Path) -> None:
    given = formats("text json=r.json junit=r.xml sarif=r.sarif markdown=r.md github=g")
    given += formats("html=r.html")
    result = examine("dd417", *given)
    assert result.exit_code == 1
    assert result.stdout.startswith("distdoctor 0.1 · ")
    assert json.loads((records / "r.json").read_text())["verdict"] == "sick"
    assert json.loads((records / "r.sarif").read_text())["version"] == "2.1.0"
    assert Tree.parse(records / "r.xml").getroot().attrib["failures"] == "1"
    assert "DD417" in (records / "r.md").read_text()
    assert (records / "g").read_text().startswith("::error ")
    assert "<title>SICK" in (records / "r.html").read_text()


def test_the_text_goes_to_stdout_where_all_formats_have_a_file(records: Path) -> None:
    result = examine("dd417", *formats("json=r.json"))
    assert result.stdout == examine("dd417").stdout
    written = examine("dd417", *formats("json=r.json"), "--output", "r.txt")
    assert written.stdout == ""
    assert (records / "r.txt").read_text() == result.stdout


def test_one_format_without_a_file_has_stdout_or_the_output(records: Path) -> None:
    plain = examine("dd417", "--format", "json")
    assert json.loads(plain.stdout)["verdict"] == "sick"
    given = [*formats("json markdown=r.md"), "--output", "r.json"]
    assert examine("dd417", *given).stdout == ""
    assert (records / "r.json").read_text() == plain.stdout


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_of_the_table_is_written(records: Path, form: str) -> None:
    assert examine("dd417", "--format", form).stdout
    examine("dd417", "--format", f"{form}=out")
    assert (records / "out").read_text()


def test_an_exit_status_and_the_junit_errors_agree(records: Path) -> None:
    assert records.exists()
    for arguments, status, bad in (
        ((), 4, "1"),
        (("--allow-incomplete",), 0, "0"),
        (("--allow-incomplete", "--strict"), 1, "1"),
    ):
        result = examine("dd614", "--format", "junit", *arguments)
        top = Tree.fromstring(result.stdout)
        assert result.exit_code == status
        found = max(top.attrib["failures"], top.attrib["errors"])
        assert found == bad


def test_a_job_that_failed_does_not_pass_as_incomplete() -> None:
    for drawing, status in ((UNKNOWN, 0), (FAILED, 4)):
        one = drawn(drawing)
        assert one.run is not None
        judged = Judged(Judgement(one.run, one.report))
        assert judged.status() == 4
        assert judged.status(allow_incomplete=True) == status


WRONG = {
    "text json": "would both go to standard output",
    "json json": "would both go to standard output",
    "json=same junit=./same": "would be written to this file",
    "json=": "give a file behind the =",
    "yaml": "'yaml' is no format; use one of text, json",
    "json=gone/r.json": "gone/r.json cannot be written",
    "json=.": ". is a folder",
    "json=same --output same": "would be written to this file",
    "json sarif --output same": "would both go to same",
}


@pytest.mark.parametrize("given", WRONG)
def test_what_cannot_be_written_is_said_before_the_run(box: Box, given: str) -> None:
    box.write("print(1)\n")
    words, _, output = given.partition(" --output ")
    options = [*formats(words), *(["--output", output] if output else [])]
    status, out, err = box.run("check", "train.py", *options)
    assert (status, out) == (2, "")
    assert WRONG[given] in " ".join(err.split())
    assert not box.records()
    assert not (box.folder / "same").exists()


@pytest.mark.parametrize("given", ["html=a.html json", "json html=a.html html=b.html"])
def test_without_jinja_a_page_is_refused_before_the_run(box: Box, given: str) -> None:
    box.write("print(1)\n")
    hidden = box.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'jinja2' else find(name)\n"
    )
    box.environment["PYTHONPATH"] = str(hidden)
    status, out, err = box.run("check", "train.py", *formats(given))
    assert (status, out) == (2, "")
    assert "pip install 'distdoctor[html]'" in " ".join(err.split())
    assert not box.records()
    assert not (box.folder / "a.html").exists()


@pytest.mark.parametrize("given", ["html", "json=r.json html"])
def test_a_page_is_no_output_for_a_terminal(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr("sys.stdout", mock.Mock(isatty=lambda: True))
    forms = [
        ReportTarget(form, Path(file) if file else None)
        for form, _, file in (word.partition("=") for word in given.split())
    ]
    with pytest.raises(UsageError, match=r"--format html=report\.html"):
        targets(forms, None)
    assert targets(forms, Path("r.html"))[-1] == ReportTarget("html", Path("r.html"))
    monkeypatch.setattr("sys.stdout", mock.Mock(isatty=lambda: False))
    assert targets(forms, None)[-1] == ReportTarget("html")


def test_a_link_to_the_same_file_is_the_same_file(records: Path) -> None:
    (records / "a").touch()
    (records / "b").symlink_to("a")
    result = examine("dd417", *formats("json=a junit=b"))
    assert result.exit_code == 2
    assert "would be written to this file" in result.stderr


def test_what_is_no_file_takes_several_reports(records: Path) -> None:
    assert records.exists()
    result = examine("dd417", *formats("json=/dev/null junit=/dev/null"))
    assert result.exit_code == 1


def test_a_file_that_cannot_be_written_in_the_end_hinders_no_other(
    records: Path,
) -> None:
    result = CliRunner().invoke(
        app, ["examine", "dd417", *formats("json=/dev/full markdown=r.md")]
    )
    assert "cannot be written to /dev/full" in str(result.exception)
    assert "verdict: sick" in str(result.exception)
    assert "DD417" in (records / "r.md").read_text()
    assert "DD417" in result.stdout


def test_no_line_of_the_text_is_a_command_in_github_actions(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = records / "dd417" / "run.json"
    told = json.loads(manifest.read_text())
    told["remarks"] = ["##[error]owned " + "word " * 11 + "::error::owned"]
    manifest.write_text(json.dumps(told))
    assert "##[error]owned" in examine("dd417").stdout
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for line in examine("dd417").stdout.splitlines():
        assert "##[" not in line
        assert not line.lstrip().startswith("::")


def test_a_list_has_no_such_formats() -> None:
    for command in (["env"], ["records", "list"]):
        result = CliRunner().invoke(app, [*command, "--format", "sarif"])
        assert result.exit_code == 2


@pytest.mark.parametrize(
    ("forms", "output", "diverted"),
    [
        ([ReportTarget("html")], None, True),
        ([], None, False),
        ([ReportTarget("text")], None, False),
        ([ReportTarget("json")], None, True),
        ([ReportTarget("markdown")], None, True),
        ([ReportTarget("json")], Path("out"), False),
        ([ReportTarget("json", Path("out"))], None, False),
    ],
)
def test_the_job_has_stdout_unless_a_report_for_machines_has_it(
    forms: list[ReportTarget], output: Path | None, diverted: bool
) -> None:
    options = ReportOptions(
        forms=tuple(forms),
        output=output,
        strict=False,
        allow_incomplete=False,
        verbose=False,
    )
    assert options.diverts == diverted
    assert not Path("out").exists()
