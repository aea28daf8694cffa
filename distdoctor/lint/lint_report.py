"""What reading texts found, as a report like that of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distdoctor.examination.waivers import Waiver
from distdoctor.lint.linting import Lint
from distdoctor.lint.source_findings import SourceFinding, ToldLine
from distdoctor.model.findings import Certainty, Role
from distdoctor.model.manual import Manual
from distdoctor.report.schema import (
    ChecksData,
    FindingData,
    IgnoredData,
    LocationData,
    NotExamined,
    Report,
    RunData,
)


@dataclass(frozen=True, slots=True)
class ReportOfTexts:
    """A report that no run belongs to."""

    report: Report
    run: None = None


READ_ONLY = "nothing was run: what stands in a text proves nothing"


def report_of(
    lint: Lint,
    paths: Sequence[str],
    version: str,
    manuals: Mapping[str, Manual],
    names: Mapping[str, str],
) -> Report:
    """The report of reading some files.

    Its verdict is unknown whatever was found: that is for a run to say.

    Args:
        lint: What was found.
        paths: The files and folders, as they were given.
        version: Of distdoctor.
        manuals: By code.
        names: By code, what the check is called.
    """
    told = _Told(manuals, names)
    return Report(
        distdoctor=version,
        verdict="unknown",
        world_size=0,
        script=paths[0] if len(paths) == 1 else "",
        launch=["distdoctor", "lint", *paths],
        findings=[told.finding(one) for one in lint.findings],
        not_examined=[
            NotExamined("the run", READ_ONLY),
            *(NotExamined(file, why) for file, why in lint.unread),
        ],
        remarks=[*lint.remarks],
        ignored=[told.ignored(one, waiver) for one, waiver in lint.ignored],
        substituted=[],
        run=RunData(
            steps=0,
            seconds=0.0,
            exit_codes={},
            exit_code=None,
            stopped="",
            calls=0,
            proof_ms=None,
            torch="",
            backend="",
            device="",
            record="",
            simulated=[],
        ),
        checks=ChecksData(
            sick=sorted({one.code for one in lint.findings}),
            well=[],
            unknown=[],
            not_applicable=[],
            crashed=[],
        ),
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """Tells of findings as reports do."""

    manuals: Mapping[str, Manual]
    names: Mapping[str, str]

    def finding(self, finding: SourceFinding) -> FindingData:
        manual = self.manuals.get(finding.code)
        return FindingData(
            code=finding.code,
            name=self.names.get(finding.code, "").replace(" ", "-"),
            severity=str(finding.severity),
            summary=finding.message,
            ranks=[],
            victims=[],
            locations=[
                _location(finding.at, Role.CULPRIT),
                *(_location(line, Role.PARTY) for line in finding.related),
            ],
            certainty=str(Certainty.LIKELY),
            evidence=["source"],
            remedy=manual.remedy() if manual is not None else "",
            details={"column": finding.at.column, "fixable": finding.fix is not None},
        )

    def ignored(self, finding: SourceFinding, waiver: Waiver) -> IgnoredData:
        told = self.finding(finding)
        return IgnoredData(finding=told, reason=waiver.reason, where=waiver.where)


def _location(line: ToldLine, role: Role) -> LocationData:
    return LocationData(line.file, line.line, line.function, [], str(role), line.remark)
