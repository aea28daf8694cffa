"""Reports as annotations of GitHub: what its runner reads from the lines."""

import re
from pathlib import Path

import pytest
from drawn_reports import (
    FAILED,
    SICK,
    UNKNOWN,
    WARNED,
    WELL,
    Drawn,
    Hostile,
    drawn,
    written,
)
from hypothesis import example, given
from hypothesis import strategies as st

from distdoctor.report.github_annotations import MOST_OF_A_LEVEL, without_commands
from distdoctor.report.plain_text import plain

EVIL = "\n::error::owned\r\n%0A::stop-commands::x##[error]owned,line=9::"
COMMAND = re.compile(r"::(?P<name>[a-z]+) (?P<properties>[^:\s][^:]*)::(?P<data>.*)")


OF_DATA = {"%0D": "\r", "%0A": "\n", "%25": "%"}
OF_VALUES = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
"""What the runner takes for what, in this order."""


def unescaped(text: str, escapes: dict[str, str]) -> str:
    for escape, meant in escapes.items():
        text = text.replace(escape, meant)
    return text


def read(text: str) -> list[tuple[str, dict[str, str], str]]:
    """The commands of a text as GitHub's runner reads them: one of each line.

    Name, properties and message, unescaped.
    """
    found = []
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        assert line.isprintable()
        command = COMMAND.fullmatch(line)
        assert command is not None, line
        pairs = (each.partition("=") for each in command["properties"].split(","))
        properties = {name: unescaped(value, OF_VALUES) for name, _, value in pairs}
        assert properties.keys() <= {"file", "line", "title"}
        found.append((command["name"], properties, unescaped(command["data"], OF_DATA)))
    return found


def annotations(
    *reported: Drawn | Hostile, **how: bool | Path
) -> list[tuple[str, dict[str, str], str]]:
    return read(written("github", *reported, **how))


def test_an_error_stands_at_its_line_with_code_certainty_and_cure() -> None:
    ((level, properties, message),) = annotations(drawn(SICK))
    assert level == "error"
    assert properties == {
        "file": "train.py",
        "line": "12",
        "title": "DD108 skipped collective (proved)",
    }
    assert "Rank 2" in message
    assert "\nCure: " in message


def test_a_file_is_named_from_the_top_of_the_repository() -> None:
    ((_, properties, _),) = annotations(drawn(SICK), root=Path("/repo"))
    assert properties["file"] == "jobs/train.py"
    ((_, elsewhere, message),) = annotations(drawn(SICK), root=Path("/other"))
    assert elsewhere.keys() == {"title"}
    assert "train.py:12" in message


def test_a_warning_is_one_unless_warnings_count_as_errors() -> None:
    assert [level for level, _, _ in annotations(drawn(WARNED))] == ["warning"]
    ((level, _, _),) = annotations(drawn(WARNED), strict=True)
    assert level == "error"


def test_a_healthy_run_says_nothing() -> None:
    assert written("github", drawn(WELL)) == ""


def test_an_unknown_run_is_a_notice_that_says_what_was_not_examined() -> None:
    ((level, properties, message),) = annotations(drawn(UNKNOWN))
    assert (level, properties) == ("notice", {"title": "distdoctor: unknown"})
    assert "rank 1: " in message


def test_an_exception_that_ended_the_job_stands_at_its_line() -> None:
    (level, properties, _), (notice, _, _) = annotations(drawn(FAILED))
    assert (level, properties["line"], notice) == ("error", "9", "notice")
    assert properties["title"] == "the job failed: ValueError"


def test_of_several_jobs_each_line_names_its_own() -> None:
    found = annotations(drawn(SICK), drawn(UNKNOWN))
    assert [
        properties["title"].endswith("[train.py]") for _, properties, _ in found
    ] == [True, True]


def test_more_than_github_shows_are_told_in_the_last_one() -> None:
    found = annotations(Hostile("x", findings=14))
    errors = [one for one in found if one[0] == "error"]
    assert len(errors) == MOST_OF_A_LEVEL
    # Fourteen, the exception, and a check of ours that broke.
    assert errors[-1][1]["title"] == f"distdoctor: {16 - MOST_OF_A_LEVEL + 1} more"


@given(st.text(st.characters(exclude_categories=())))
@example(EVIL)
@example("a" * 10_000)
@example("%0A%25%2C")
def test_any_text_stays_in_its_own_annotation(text: str) -> None:
    found = annotations(Hostile(text, verdict="unknown"))
    levels = [level for level, _, _ in found]
    assert levels == ["error"] * 3 + ["warning"] + ["notice"] * 2
    told = "\n".join(map(plain, text.split("\n")))
    for _, properties, message in found[1:2] + found[3:5]:  # the findings
        assert properties["title"] == "DD108 skipped collective (proved)"
        assert message.startswith(told[:1000])


@given(st.text(st.characters(exclude_categories=())))
@example(EVIL)
@example("  ::error::x")
@example("\x85::error::x")
def test_a_text_beside_them_holds_no_command(text: str) -> None:
    for line in without_commands(text).split("\n"):
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


@pytest.mark.parametrize("text", ["a::b", "at::native", "# [x]", ""])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert without_commands(text) == text
