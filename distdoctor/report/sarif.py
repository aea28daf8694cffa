"""The report in SARIF 2.1.0, which code hosts and editors show beside the source.

Source: OASIS Standard "Static Analysis Results Interchange Format (SARIF) Version
2.1.0", errata 01; the numbers in comments are its sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from distdoctor.examination.waivers import PROJECT_FILE
from distdoctor.journal.folder import as_text
from distdoctor.model.manual import HEADINGS, Manual
from distdoctor.model.run import named
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.json import indented
from distdoctor.report.schema import FindingData, IgnoredData, LocationData, Report

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/"
    "sarif-schema-2.1.0.json"
)

_ROOT = "%SRCROOT%"  # as code hosts call the top of a repository
_OF_FUNCTION = "::"  # between the file and the name of a test


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports as one log; see `distdoctor.report.formats`."""
    reports = [one.report for one in reported]
    directory, root = rendering.directory, rendering.root
    inside = root if root is not None and directory.is_relative_to(root) else None
    return render(reports, rendering.manuals(), directory, inside)


def render(
    reports: Sequence[Report],
    manuals: Mapping[str, Manual],
    directory: Path,
    root: Path | None = None,
) -> str:
    """Reports as one SARIF log, with a new line at its end.

    Args:
        reports: Of one release of distdoctor.
        manuals: By code.
        directory: What names of files in the reports are relative to.
        root: What they are to be relative to in the log; by default the same.
    """
    placed = _Placed(directory, root or directory)
    findings = [
        (report, finding, ignored)
        for report in reports
        for finding, ignored in (
            *((one, None) for one in report.findings),
            *((one.finding, one) for one in report.ignored),
        )
    ]
    by_code = {finding.code: finding for _, finding, _ in reversed(findings)}
    codes = sorted(by_code)
    driver = {
        "name": "distdoctor",
        "version": reports[0].distdoctor if reports else "",
        "rules": [_rule(by_code[code], manuals.get(code)) for code in codes],
    }
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(report, placed) for report in reports],
                "results": [
                    _result(report, finding, codes.index(finding.code), placed)
                    | _suppressed(ignored)
                    for report, finding, ignored in findings
                ],
            }
        ],
    }
    return indented(as_text(log))


class _Placed:
    """Files, as a log names them."""

    def __init__(self, directory: Path, root: Path) -> None:
        self._directory, self._root = directory, root

    def artifact(self, file: str) -> dict[str, str]:
        """An artifactLocation (3.4): under the root, or else the whole address."""
        path = self._directory / file
        if ".." not in PurePath(file).parts and path.is_relative_to(self._root):
            inside = PurePosixPath(path.relative_to(self._root))
            return {"uri": _quoted(str(inside)), "uriBaseId": _ROOT}
        if path.is_absolute():
            return {"uri": "file://" + _quoted(str(path))}
        return {"uri": _quoted(file), "uriBaseId": _ROOT}


def _quoted(path: str) -> str:
    return quote(path.encode("utf-8", "surrogateescape"))


def _rule(finding: FindingData, manual: Manual | None) -> dict[str, Any]:
    """A reportingDescriptor (3.49): what `distdoctor explain` says of a code."""
    rule: dict[str, Any] = {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.name.split("-")),
        "defaultConfiguration": {"level": finding.severity},
    }
    if manual is not None:
        sections = [(heading, manual.sections[heading]) for heading in HEADINGS]
        what = " ".join(manual.sections[HEADINGS[0]].split("\n\n")[0].split())
        rule["shortDescription"] = {"text": manual.summary}
        rule["fullDescription"] = {"text": what}
        rule["help"] = {
            "text": "\n\n".join(f"{title}\n\n{body}" for title, body in sections),
            "markdown": "\n\n".join(
                f"## {title}\n\n{body}" for title, body in sections
            ),
        }
    return rule


def _result(
    report: Report, finding: FindingData, rule: int, placed: _Placed
) -> dict[str, Any]:
    """A result (3.27): its first location is the line to look at, the rest related."""
    first, rest = finding.locations[:1], finding.locations[1:]
    locations = [_location(one, placed) for one in first] or _script(report, placed)
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": finding.summary},
        "locations": locations,
        "properties": {
            "script": report.script,
            "worldSize": report.world_size,
            "ranks": finding.ranks,
            "victims": finding.victims,
            "certainty": finding.certainty,
            "evidence": finding.evidence,
            "remedy": finding.remedy,
            "consequences": [
                {"code": one.code, "summary": one.summary}
                for one in finding.consequences
            ],
        },
    }
    if rest:
        result["relatedLocations"] = [
            {"id": number, **_location(one, placed)} for number, one in enumerate(rest)
        ]
    return result


def _suppressed(ignored: IgnoredData | None) -> dict[str, Any]:
    """The suppressions of a result (3.27.23, 3.35): who ignores it and why."""
    if ignored is None:
        return {}
    in_source = ignored.where != PROJECT_FILE
    kind = "inSource" if in_source else "external"
    return {"suppressions": [{"kind": kind, "justification": ignored.reason}]}


def _location(location: LocationData, placed: _Placed) -> dict[str, Any]:
    """A location (3.28); its message tells the ranks."""
    physical: dict[str, Any] = {"artifactLocation": placed.artifact(location.file)}
    if location.line >= 1:  # 3.30.5: lines count from 1
        physical["region"] = {"startLine": location.line}
    entry: dict[str, Any] = {"physicalLocation": physical}
    words = [named(location.ranks)] if location.ranks else []
    if remark := [*words, *filter(None, [location.remark])]:
        entry["message"] = {"text": ": ".join(remark)}
    if location.function:
        entry["logicalLocations"] = [{"name": location.function, "kind": "function"}]
    return entry


def _script(report: Report, placed: _Placed) -> list[dict[str, Any]]:
    """Code hosts want a place for each result: the script, or the file of the test."""
    file = report.script.partition(_OF_FUNCTION)[0]
    if not file.endswith(".py"):
        return []
    return [{"physicalLocation": {"artifactLocation": placed.artifact(file)}}]


def _invocation(report: Report, placed: _Placed) -> dict[str, Any]:
    """An invocation (3.20): what was run, and what of it was not seen."""
    level = "warning" if report.verdict == "unknown" else "note"
    gaps = (f"not examined: {gap.what}: {gap.why}" for gap in report.not_examined)
    notices = _notices(chain(gaps, report.remarks), level, _script(report, placed))
    properties: dict[str, Any] = {"script": report.script, "verdict": report.verdict}
    if report.compared is not None:
        properties["compared"] = msgspec.to_builtins(report.compared)
    return {
        "commandLine": " ".join(report.launch),
        "executionSuccessful": not report.checks.crashed,
        "toolExecutionNotifications": list(notices),
        "properties": properties,
    }


def _notices(
    texts: Iterable[str], level: str, locations: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Notifications (3.58)."""
    for text in texts:
        notice: dict[str, Any] = {"message": {"text": text}, "level": level}
        if locations:
            notice["locations"] = list(locations)
        yield notice
