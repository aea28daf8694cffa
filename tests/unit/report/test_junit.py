"""Reports as JUnit XML: what CI systems read, and what they would show as green."""

from xml.etree import ElementTree as Tree

import junitparser
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
from hypothesis import given
from hypothesis import strategies as st

SHAPE: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (
        {"testsuite"},
        set(),
        {"name", "time", "tests", "failures", "errors"},
    ),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "file"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": (
        {"skipped", "error", "failure", "system-out", "system-err"},
        {"name"},
        {"classname", "time"},
    ),
    "failure": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "skipped": (set(), set(), {"type", "message"}),
    "system-out": (set(), set(), set()),
}
"""By element: what may be in it, attributes that it needs, and those it may have."""


def require_shape(element: Tree.Element) -> None:
    inside, needed, allowed = SHAPE[element.tag]
    assert {child.tag for child in element} <= inside, element.tag
    assert needed <= {*element.keys()} <= needed | allowed, element.tag
    for child in element:
        require_shape(child)


def suites(*reported: Drawn | Hostile, **how: bool) -> Tree.Element:
    """The text, parsed, if all that is counted in it is right."""
    text = written("junit", *reported, **how)
    assert text.isascii()
    top = Tree.fromstring(text)
    require_shape(top)
    assert len(top) == len(reported)
    for attribute, path in (
        ("tests", "testcase"),
        ("failures", "testcase/failure"),
        ("errors", "testcase/error"),
        ("skipped", "testcase/skipped"),
    ):
        for suite in top:
            assert int(suite.attrib[attribute]) == len(suite.findall(path))
        if attribute != "skipped":
            total = sum(int(suite.attrib[attribute]) for suite in top)
            assert int(top.attrib[attribute]) == total
    for case in top.iter("testcase"):
        assert sum(case.find(kind) is not None for kind in RESULTS) <= 1
    return top


RESULTS = ("failure", "error", "skipped")


def case(top: Tree.Element, name: str) -> Tree.Element:
    (found,) = [one for one in top.iter("testcase") if one.attrib["name"] == name]
    return found


def results(top: Tree.Element) -> dict[str, list[str]]:
    """By kind of result, the names of its cases."""
    return {
        kind: [
            one.attrib["name"]
            for one in top.iter("testcase")
            if one.find(kind) is not None
        ]
        for kind in RESULTS
    }


def test_an_error_is_a_failure_with_its_ranks_lines_and_cure() -> None:
    top = suites(drawn(SICK))
    assert results(top)["failure"] == ["DD108 skipped collective"]
    assert results(top)["error"] == []
    one = case(top, "DD108 skipped collective")
    assert one.attrib["classname"] == "distdoctor.collectives"
    failure = one.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "DD108"
    assert "Rank 2" in failure.attrib["message"]
    assert failure.text is not None
    assert "train.py:7" in failure.text
    assert "at fault: rank 2" in failure.text
    assert "cure: " in failure.text


def test_a_healthy_run_passes_and_what_does_not_apply_is_skipped() -> None:
    top = suites(drawn(WELL))
    found = results(top)
    assert (found["failure"], found["error"]) == ([], [])
    skipped = case(top, "DD115 parameter order").find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"].startswith("does not apply: ")
    assert len(case(top, "DD101 mismatched collective")) == 0
    values = {one.attrib["name"]: one.attrib["value"] for one in top.iter("property")}
    assert values["distdoctor.ranks"] == "2"
    assert values["distdoctor.version"] == "0.1.0"
    assert values["distdoctor.verdict"] == "well"


def test_an_unknown_run_is_not_green_and_says_why() -> None:
    top = suites(drawn(UNKNOWN))
    assert results(top)["error"] == ["verdict"]
    skipped = case(top, "DD101 mismatched collective").find("skipped")
    assert skipped is not None
    assert skipped.attrib["message"].startswith("unknown: ")
    allowed = suites(drawn(UNKNOWN), allow_incomplete=True)
    assert results(allowed)["error"] == []
    assert "verdict" in results(allowed)["skipped"]


def test_a_job_that_failed_for_no_known_reason_is_not_green() -> None:
    for allows in (False, True):
        top = suites(drawn(FAILED), allow_incomplete=allows)
        assert results(top)["error"] == ["the job", "verdict"]
    error = case(top, "the job").find("error")
    assert error is not None
    assert error.attrib["type"] == "ValueError"
    assert error.text is not None
    assert "train.py:9" in error.text


def test_a_warning_passes_with_its_text_and_fails_if_warnings_count() -> None:
    top = suites(drawn(WARNED))
    assert results(top)["failure"] == []
    told = case(top, "DD508 piled hooks").find("system-out")
    assert told is not None
    assert told.text is not None
    assert "t.py:5" in told.text
    strict = suites(drawn(WARNED), strict=True)
    assert results(strict)["failure"] == ["DD508 piled hooks"]


def test_what_is_ignored_is_skipped_with_the_reason() -> None:
    top = suites(drawn(WARNED, {"DD508": "we know of it"}), strict=True)
    assert results(top)["failure"] == []
    skipped = case(top, "DD508 piled hooks").find("skipped")
    assert skipped is not None
    assert "we know of it" in skipped.attrib["message"]


def test_a_fault_of_our_own_is_an_error_and_no_skip() -> None:
    top = suites(Hostile("x"))
    assert "DD103 mismatched dtype" in results(top)["error"]
    assert "DD102 mismatched shape" in results(top)["skipped"]


def test_each_report_has_a_suite_of_its_own() -> None:
    top = suites(drawn(SICK), drawn(WELL))
    assert [suite.attrib["failures"] for suite in top] == ["1", "0"]


@pytest.mark.parametrize("drawing", [SICK, WELL, UNKNOWN, FAILED])
def test_a_reader_of_others_reads_it(drawing: str) -> None:
    text = written("junit", drawn(drawing))
    read = junitparser.JUnitXml.fromstring(text)
    (suite,) = read
    bad = [one for one in suite if one.result and not one.is_skipped]
    assert len(bad) == suite.failures + suite.errors
    assert bool(bad) == (drawing != WELL)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_makes_xml_that_parses_and_says_it(text: str) -> None:
    top = suites(Hostile(f"<{text}]]>&"))
    failure = case(top, "DD108 skipped collective").find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "]]>&" in failure.text
