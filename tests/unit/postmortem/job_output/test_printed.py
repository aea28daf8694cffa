"""Output that real jobs printed (torch 2.13, gloo), each failing in one way."""

from pathlib import Path

import pytest
from autopsies import findings_in, report_on

PRINTED = Path(__file__).parent / "printed"

TOLD = {
    "raise": ("DD202", (1,)),
    "kill": ("DD202", (1,)),
    "exit": ("DD202", (1,)),
    "chained": ("DD202", (1,)),
    "spawned": ("DD202", (1,)),
    "teed": ("DD202", (1,)),
    "late": ("DD609", (1,)),
    "monitored": ("DD609", (1,)),
    "detail": ("DD102", (1,)),
    "shape": ("DD102", ()),
    "key": ("DD207", ()),
    "joinshort": ("DD206", (1,)),
    "missing": ("DD206", ()),
    "inuse": ("DD612", ()),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_a_job_printed_tells_who_was_at_fault(name: str) -> None:
    assert findings_in(report_on(PRINTED / f"{name}.log")) == [TOLD[name]]


@pytest.mark.parametrize("name", ["healthy", "restarted"])
def test_nobody_is_accused_where_it_does_not_tell(name: str) -> None:
    report = report_on(PRINTED / f"{name}.log")
    assert (report.verdict, findings_in(report)) == ("unknown", [])


def test_the_line_and_the_victims_are_named() -> None:
    (finding,) = report_on(PRINTED / "raise.log").findings
    assert "KeyError ('label')" in finding.summary
    assert [(one.file, one.line) for one in finding.locations] == [
        ("/home/user/train.py", 9)
    ]
    assert finding.victims == [0, 2]


def test_of_a_chain_of_exceptions_the_last_is_told() -> None:
    (finding,) = report_on(PRINTED / "chained.log").findings
    assert "ValueError (bad record)" in finding.summary


def test_errors_that_a_program_handled_are_not_told_as_raised() -> None:
    assert report_on(PRINTED / "healthy.log").raised == []


def test_each_victims_error_is_not_told_beside_the_cause() -> None:
    assert report_on(PRINTED / "kill.log").raised == []


def test_of_messages_that_do_not_fit_the_sizes_and_the_victims_line_are_told() -> None:
    (finding,) = report_on(PRINTED / "shape.log").findings
    assert finding.certainty == "likely"
    assert (
        "sent a message of 8 bytes where its call expects at most 4" in finding.summary
    )
    assert [(one.line, one.ranks) for one in finding.locations] == [(79, [1])]


def test_without_a_launcher_who_prints_no_traceback_was_ended(tmp_path: Path) -> None:
    text = (PRINTED / "shape.log").read_text().partition("W1126")[0]
    (finding,) = report_on(_file(tmp_path, text)).findings
    assert (finding.code, finding.victims) == ("DD102", [0])


def test_why_a_rank_aborted_is_likely_where_its_last_words_are_lost(
    tmp_path: Path,
) -> None:
    text = (PRINTED / "shape.log").read_text()
    text = text[text.index("[rank1]: Traceback") :]
    (finding,) = report_on(_file(tmp_path, text)).findings
    assert (finding.code, finding.ranks) == ("DD202", [0])
    assert finding.certainty == "likely"
    assert "its stderr tells" in finding.summary
    assert finding.remedy.startswith("Look at the stderr of rank 0")


def _file(folder: Path, text: str) -> Path:
    path = folder / "job.log"
    path.write_text(text)
    return path
