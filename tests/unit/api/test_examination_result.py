"""What `examine` and its like return, and what a notebook shows of it."""

import io
import json
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest
from drawn_reports import FAILED, SICK, UNKNOWN, WARNED, WELL, Hostile, drawn
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from unpacked_records import unpack

import distdoctor
from distdoctor.api.examination_result import Examination
from distdoctor.errors import (
    DistdoctorError,
    FormatUnknown,
    LaunchRefused,
    LeavingsMissing,
    NotWell,
    RecordUnreadable,
)
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run
from distdoctor.report.formats import FORMATS
from distdoctor.report.notebook_html import fragment
from distdoctor.report.text import render

EVIL = (
    "</pre></div><script>alert(1)</script><img src=x onerror=y>\"' `</code>` "
    "\u202e\x1b[31m"
)

TAGS = {"div", "span", "b", "code", "pre", "details", "summary", "ul", "li"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of a sick run, in the working directory."""
    unpack("version_2.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "dd417"


def of(drawing: str, status: int = 1) -> Examination:
    one = drawn(drawing)
    assert one.run is not None
    return Examination(one.report, one.run, status)


class Shown(HTMLParser):
    """Reads HTML; fails where there is more in it than ours."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.open = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element, if it is one of ours."""
        assert tag in TAGS, tag
        assert {name for name, _ in attrs} <= {"style", "class", "open"}
        for _, value in attrs:
            assert "url(" not in (value or "")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the element that is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.text += data

    def handle_comment(self, data: str) -> None:
        """Refuse a comment: we write none."""
        pytest.fail(f"a comment: {data}")


def shown(html: str) -> str:
    """The text of HTML that is whole, and harmless."""
    parser = Shown()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.text.replace("\n", "").isprintable()
    return parser.text


def test_importing_the_package_loads_nothing_that_the_ranks_would_wait_for() -> None:
    program = (
        "import sys; before = set(sys.modules); import distdoctor\n"
        "assert {'check', 'examine', 'autopsy'} <= set(dir(distdoctor))\n"
        "slow = {*sys.modules} - before - {'distdoctor'}\n"
        "assert not slow, slow\n"
        "distdoctor.check\n"
        "slow = {'torch', 'numpy', 'rich', 'click', 'zmq'} & {*sys.modules}\n"
        "assert not slow, slow\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        distdoctor.chekc  # type: ignore[attr-defined] # noqa: B018


def test_a_kept_record_is_judged_as_by_the_command(record: Path) -> None:
    one = distdoctor.examine(record)
    assert (one.verdict, one.codes, one.exit_status, one.ok) == (
        "sick",
        ("DD417",),
        1,
        False,
    )
    assert one.record == record
    (finding,) = one.findings
    assert (finding.code, finding.severity) == ("DD417", "error")
    assert finding.summary
    assert finding.remedy
    assert str(finding.locations[0]).endswith(f":{finding.locations[0].line}")
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "examine", str(record)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert one.text == done.stdout
    assert json.loads(one.to_json()) == json.loads(one.to("json"))


def test_what_a_job_left_is_judged_as_by_the_command(record: Path) -> None:
    assert distdoctor.autopsy(record).codes == ("DD417",)
    for wrong in ((), (1, record)):
        with pytest.raises(LeavingsMissing):
            distdoctor.autopsy(*wrong)
    with pytest.raises(LeavingsMissing):
        distdoctor.autopsy(record.parent / "gone")
    with pytest.raises(RecordUnreadable):
        distdoctor.examine(record.parent / "gone")


def test_it_cannot_be_changed() -> None:
    one = of(SICK)
    with pytest.raises(FrozenInstanceError):
        one.stdout = "x"  # type: ignore[misc]
    one.report.verdict = "well"
    one.report.findings.clear()
    assert (one.verdict, one.codes) == ("sick", ("DD108",))
    with pytest.raises(FrozenInstanceError):
        one.findings[0].ranks = ()  # type: ignore[misc]
    assert hash(one) == hash(one)


def test_its_parts_are_those_of_the_report() -> None:
    one = of(SICK)
    (finding,) = one.findings
    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert (finding.name, finding.certainty) == ("skipped-collective", "proved")
    assert [str(at) for at in finding.locations][:2] == ["train.py:12", "train.py:7"]
    unknown = of(UNKNOWN, 4)
    assert [gap.what for gap in unknown.not_examined] == ["rank 1"]
    assert not unknown.ok
    assert of(WELL, 0).ok


def test_it_raises_as_the_exit_status_says() -> None:
    of(WELL, 0).raise_for_verdict()
    of(WARNED, 0).raise_for_verdict()
    of(UNKNOWN, 4).raise_for_verdict(allow_incomplete=True)
    with pytest.raises(NotWell, match="the job failed"):
        of(FAILED, 4).raise_for_verdict(allow_incomplete=True)
    with pytest.raises(NotWell, match="DD108 skipped collective"):
        of(SICK).raise_for_verdict(allow_incomplete=True)
    with pytest.raises(NotWell, match="unknown, not well"):
        of(UNKNOWN, 4).raise_for_verdict()
    with pytest.raises(NotWell, match="well, with warnings"):
        of(WARNED, 0).raise_for_verdict(strict=True)
    with pytest.raises(AssertionError):
        of(FAILED, 4).raise_for_verdict()


@pytest.mark.parametrize("form", FORMATS)
def test_it_is_written_in_every_format_of_the_command(
    form: str, tmp_path: Path
) -> None:
    path = of(SICK).write(form, tmp_path / "report")
    assert "DD108" in path.read_text(encoding="utf-8")


def test_a_warning_fails_in_the_formats_too_if_warnings_count() -> None:
    top = Tree.fromstring(of(WARNED, 0).to("junit", strict=True))
    assert top.attrib["failures"] == "1"


def test_a_format_that_there_is_not_is_said() -> None:
    with pytest.raises(FormatUnknown, match="no format 'yaml'; use one of text, json"):
        of(SICK).to("yaml")


def test_rich_prints_the_report_as_wide_as_there_is_room() -> None:
    for width in (70, 100):
        stream = io.StringIO()
        Console(file=stream, width=width).print(of(SICK))
        lines = stream.getvalue().splitlines()
        one = drawn(SICK)
        assert one.run is not None
        assert [line.rstrip() for line in lines] == render(
            one.report, one.run, width=width
        ).splitlines()


def test_a_notebook_shows_the_verdict_the_line_the_cure_and_no_more_than_text() -> None:
    text = shown(of(SICK)._repr_html_())
    for words in ("SICK", "DD108 skipped collective", "rank 2", "train.py:12", "Cure:"):
        assert words in text
    assert "not all was seen" in shown(of(UNKNOWN, 4)._repr_html_())
    assert "no check knows why" in shown(of(FAILED, 4)._repr_html_())
    assert "checks found nothing." in shown(of(WELL, 0)._repr_html_())
    assert "warning · " not in shown(of(WELL, 0)._repr_html_())


def test_why_it_is_unknown_is_open_and_otherwise_folded() -> None:
    assert "<details open" in of(UNKNOWN, 4).to_html()
    assert "<details open" not in of(SICK).to_html()


def test_the_line_of_source_stands_there_with_its_neighbours() -> None:
    source = "\n".join(f"line({n}) < 1" for n in range(1, 20))
    run = replace(sketch(SICK), sources={"train.py": source})
    report = drawn(SICK).report
    text = shown(fragment(report, run))
    assert "▸   12 │ line(12) < 1" in text
    assert "   10 │ line(10) < 1" in text
    assert "line(9)" not in text.partition("The report as text")[0].partition("7 │")[0]


@given(st.text(st.characters(exclude_categories=())))
@example(EVIL)
@example("x" * 100_000)
def test_any_text_is_shown_as_text_alone(text: str) -> None:
    run = replace(sketch(WELL), sources={text: f"{text}\n" * 5})
    for verdict in ("sick", "unknown"):
        told = shown(fragment(Hostile(text, verdict).report, run))
        assert "DD108 skipped collective" in told


def test_very_many_findings_are_counted() -> None:
    html = fragment(Hostile("x", findings=400).report, sketch(WELL))
    assert len(html) < 400_000
    assert "and 1180 more" in shown(html)


@given(st.text(st.characters(exclude_categories=())))
@example("a\nb\x1b")
def test_its_name_is_one_line_that_can_be_printed(text: str) -> None:
    run: Run = sketch(WELL)
    assert repr(Examination(Hostile(text).report, run, 1)).isprintable()


def test_its_name_says_what_was_found() -> None:
    assert repr(of(SICK)) == (
        "<Examination train.py on 4 ranks: sick; "
        "DD108 skipped collective (rank 2, train.py:12)>"
    )
    assert repr(of(WELL, 0)) == "<Examination train.py on 2 ranks: well>"
    assert "the job failed: ValueError" in repr(of(FAILED, 4))


class Trainer:
    """Something that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((lambda: None,), {}, "write it to a file"),
        ((Trainer(),), {}, "and Trainer is an object of this one"),
        ((print,), {}, "and print is an object of this one"),
        (("train.ipynb",), {}, "nbconvert --to script train.ipynb"),
        ((7,), {}, "the path of a script, and not int"),
        ((), {}, "takes a script, or command="),
        (("a.py",), {"command": ["python"]}, "takes a script, or command="),
        (("gone.py",), {}, "no script gone.py"),
        (("a.py",), {"device": "tpu"}, "give one of auto, cpu, cuda"),
        (("a.py",), {"launcher": "ssh"}, "give one of auto, torchrun"),
        (("a.py",), {"nproc": 0}, "give the number of ranks, 1 or more"),
        (("a.py",), {"budget": 0}, "budget is to be 1 second or more"),
    ],
)
def test_what_cannot_be_checked_is_said_and_nothing_is_started(
    arguments: tuple[object, ...],
    options: dict[str, object],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("a.py").write_text("print(1)\n")
    with pytest.raises(LaunchRefused) as refused:
        distdoctor.check(*arguments, **options)  # type: ignore[arg-type]
    assert sentence in str(refused.value)
    runs = tmp_path / "cache" / "distdoctor" / "runs"
    assert not runs.exists() or not [*runs.iterdir()]


def test_records_are_judged_in_several_threads(record: Path) -> None:
    found: list[tuple[str, ...]] = []
    threads = [
        threading.Thread(target=lambda: found.append(distdoctor.examine(record).codes))
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [("DD417",)] * 4


def test_errors_are_those_of_the_package() -> None:
    assert issubclass(NotWell, DistdoctorError)
    assert issubclass(FormatUnknown, ValueError)
