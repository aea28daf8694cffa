"""Reports in SARIF: what the standard demands, and what code hosts look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drawn_reports import SICK, WELL

from distdoctor.catalogue import every_check, manuals
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.examination.waivers import Waiving
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import sketch
from distdoctor.pytest_plugin.session_report import write_session
from distdoctor.report import sarif
from distdoctor.report.compose import compose
from distdoctor.report.schema import Report, session_schema

_TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}},
    "additionalProperties": False,
}
_LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "message": _TEXT,
        "logicalLocations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "kind": {"const": "function"},
                },
                "additionalProperties": False,
            },
        },
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {
                        "uri": {"type": "string", "pattern": r"^[!-~]+$"},
                        "uriBaseId": {"type": "string"},
                    },
                    "additionalProperties": False,
                },
                "region": {
                    "type": "object",
                    "properties": {"startLine": {"type": "integer", "minimum": 1}},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
_LOCATIONS = {"type": "array", "items": _LOCATION}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}

ESSENTIALS: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"type": "string"},
                                                "shortDescription": _TEXT,
                                                "fullDescription": _TEXT,
                                                "help": _TEXT,
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {"level": _LEVEL},
                                                    "additionalProperties": False,
                                                },
                                            },
                                            "additionalProperties": False,
                                        },
                                    },
                                },
                                "additionalProperties": False,
                            }
                        },
                        "additionalProperties": False,
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "properties": {
                                "commandLine": {"type": "string"},
                                "executionSuccessful": {"type": "boolean"},
                                "properties": {"type": "object"},
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["message"],
                                        "properties": {
                                            "message": _TEXT,
                                            "level": _LEVEL,
                                            "locations": _LOCATIONS,
                                        },
                                        "additionalProperties": False,
                                    },
                                },
                            },
                            "additionalProperties": False,
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": _LEVEL,
                                "message": _TEXT,
                                "locations": _LOCATIONS,
                                "relatedLocations": _LOCATIONS,
                                "properties": {"type": "object"},
                            },
                            "additionalProperties": False,
                        },
                    },
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
"""What we write of the standard's schema, with its demands; the whole is 110 KB."""


def report_of(drawing: str, script: str = "train.py") -> Report:
    run = sketch(drawing)
    verdicts = examine(run, every_check())
    manifest = Manifest(
        distdoctor="0.1.0", launch=["torchrun", script], script=script, directory="/job"
    )
    return compose(run, Waiving(verdicts), conclude(run, verdicts), manifest)


def log_of(*reports: Report, root: str = "/job") -> dict[str, Any]:
    text = sarif.render(reports, manuals(), Path("/job"), Path(root))
    assert text.endswith("}\n")
    log: dict[str, Any] = json.loads(text)
    jsonschema.validate(log, ESSENTIALS)
    (run,) = log["runs"]
    return dict(run)


def test_a_finding_is_a_result_at_its_line_with_its_manual_as_the_rule() -> None:
    run = log_of(report_of(SICK))
    (rule,) = run["tool"]["driver"]["rules"]
    (result,) = run["results"]
    assert (rule["id"], rule["name"]) == ("DD108", "SkippedCollective")
    assert rule["shortDescription"]["text"] == manuals()["DD108"].summary
    assert manuals()["DD108"].sections["Remedy"] in rule["help"]["markdown"]
    assert (result["ruleId"], result["ruleIndex"]) == ("DD108", 0)
    assert result["level"] == rule["defaultConfiguration"]["level"] == "error"
    first = result["locations"][0]
    assert first["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert first["message"]["text"].startswith("rank 2")
    assert [
        one["physicalLocation"]["region"]["startLine"]
        for one in result["relatedLocations"]
    ] == [7]
    assert result["properties"]["ranks"] == [2]


def test_each_code_is_one_rule_however_many_tests_show_it() -> None:
    other = SICK.replace("barrier@train.py:12...", "all_reduce(8)@train.py:12!")
    run = log_of(report_of(SICK), report_of(WELL), report_of(other), report_of(SICK))
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == sorted(set(rules))
    assert len(run["results"]) == 3
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    assert len(run["invocations"]) == 4


def test_files_are_named_from_the_root_of_the_repository() -> None:
    report = report_of(SICK)
    for location, file in zip(
        report.findings[0].locations, ("ä b.py", "/lib/x.py"), strict=True
    ):
        location.file = file
    run = log_of(report, root="/")
    (result,) = run["results"]
    uris = [
        one["physicalLocation"]["artifactLocation"]
        for one in (*result["locations"], *result["relatedLocations"])
    ]
    assert uris[0] == {"uri": "job/%C3%A4%20b.py", "uriBaseId": "%SRCROOT%"}
    assert uris[1] == {"uri": "lib/x.py", "uriBaseId": "%SRCROOT%"}
    elsewhere = log_of(report, root="/other")
    first = elsewhere["results"][0]["locations"][0]["physicalLocation"]
    assert first["artifactLocation"] == {"uri": "file:///job/%C3%A4%20b.py"}


def test_a_finding_without_a_line_is_shown_at_the_test() -> None:
    report = report_of(SICK, "tests/test_x.py::test_y[2]")
    report.findings[0].locations = []
    (result,) = log_of(report)["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "tests/test_x.py"
    report.script = "3 commands"
    assert log_of(report)["results"][0]["locations"] == []


def test_what_was_not_seen_is_told_as_a_notification() -> None:
    unknown = "rank 0 | start=2  all_reduce(4)  exit=0\nrank 1 | ?"
    (invocation,) = log_of(report_of(unknown))["invocations"]
    notices = invocation["toolExecutionNotifications"]
    assert notices[0]["level"] == "warning"
    assert "not examined: rank 1" in notices[0]["message"]["text"]
    assert log_of() == {**log_of(), "results": [], "invocations": []}


def test_names_that_are_no_text_are_written_all_the_same() -> None:
    report = report_of(SICK)
    report.findings[0].locations[0].file = "b\udcff.py"
    uri = log_of(report)["results"][0]["locations"][0]["physicalLocation"]
    assert uri["artifactLocation"]["uri"] == "b%FF.py"


@pytest.mark.parametrize("name", ["new/r.sarif", "new/r.json", "new/r.txt"])
def test_a_session_is_written_as_its_name_tells(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_session(path, [report_of(WELL), report_of(SICK)], tmp_path)
    log = json.loads(path.read_text())
    if name.endswith("sarif"):
        jsonschema.validate(log, ESSENTIALS)
        return
    jsonschema.validate(log, session_schema())
    assert log["schema"] == "distdoctor.session/1"
    assert log["verdict"] == "sick"
    assert [report["verdict"] for report in log["reports"]] == ["well", "sick"]
    write_session(path, [], tmp_path)
    assert json.loads(path.read_text())["verdict"] == "well"


def test_a_session_is_written_for_people_and_ci_likewise(tmp_path: Path) -> None:
    for name, beginning in (("r.md", "<!-- distdoctor:report -->"), ("r.XML", "<?xml")):
        for reports in ([report_of(WELL), report_of(SICK)], []):
            write_session(tmp_path / name, reports, tmp_path)
            text = (tmp_path / name).read_text(encoding="utf-8")
            assert text.startswith(beginning)
            assert ("DD108" in text) == bool(reports)
