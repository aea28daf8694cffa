"""The report as JUnit XML, which CI systems list as tests: one for each check.

There is no standard; this is what Jenkins, GitLab and others read, in the shape of the
schema of Jenkins' xUnit plugin. All is written in ASCII, so that no encoding matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Tree

from distdoctor.model.run import named
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.plain_text import plain, plain_lines
from distdoctor.report.schema import FindingData, Report

_FAMILIES = {
    "1": "collectives",
    "2": "hangs",
    "3": "data",
    "4": "state",
    "5": "training",
    "6": "environment",
    "7": "source",
}
"""By the first digit of a code."""

_HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n'
_TOP = "distdoctor"


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """A suite for each report, and a case for each check."""
    top = Tree.Element("testsuites", name=_TOP)
    for one in reported:
        top.append(_suite(one.report, rendering))
    for attribute in ("tests", "failures", "errors"):
        total = sum(int(suite.get(attribute, "0")) for suite in top)
        top.set(attribute, str(total))
    Tree.indent(top)
    body: bytes = Tree.tostring(top, "us-ascii", xml_declaration=False)
    return f"{_HEADER}{body.decode()}\n"


def _suite(report: Report, rendering: Rendering) -> Tree.Element:
    run = report.run
    suite = Tree.Element("testsuite", name=f"{_TOP} {plain(report.script)}".strip())
    properties = Tree.SubElement(suite, "properties")
    for name, value in (
        ("distdoctor.version", report.distdoctor),
        ("distdoctor.verdict", report.verdict),
        ("distdoctor.ranks", str(report.world_size)),
        ("distdoctor.steps", str(run.steps)),
        ("distdoctor.torch", run.torch),
        ("distdoctor.backend", run.backend),
        ("distdoctor.device", run.device),
        ("distdoctor.record", run.record),
        ("distdoctor.command", " ".join(report.launch)),
    ):
        Tree.SubElement(properties, "property", name=name, value=plain(value))
    cases = [*_cases(report, rendering)]
    suite.extend(cases)
    for attribute, kind in (
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        count = sum(case.find(kind) is not None for case in cases)
        suite.set(attribute, str(count))
    suite.set("tests", str(len(cases)))
    suite.set("time", f"{run.seconds:.3f}")
    return suite


def _cases(report: Report, rendering: Rendering) -> Iterator[Tree.Element]:
    """The cases, by code, and last what is true of the whole."""
    found: dict[str, list[FindingData]] = {}
    for finding in _every(report.findings):
        found.setdefault(finding.code, []).append(finding)
    waived: dict[str, list[tuple[FindingData, str]]] = {}
    for one in report.ignored:
        for finding in _every([one.finding]):
            reason = f"{one.where}: {one.reason}"
            waived.setdefault(finding.code, []).append((finding, reason))
    checks = report.checks
    codes = {*found, *waived, *checks.sick, *checks.well, *checks.unknown}
    for code in sorted(codes.union(checks.not_applicable)):
        findings, ignored = found.get(code, []), waived.get(code, [])
        case = _case(code, rendering, findings or [one for one, _ in ignored])
        _judge(case, code, findings, ignored, report, rendering)
        yield case
    for raised in report.raised:
        who = named(raised.ranks) if raised.ranks else "a process without a rank"
        at = raised.location
        where = f"\n{at.file}:{at.line} {at.function}" if at is not None else ""
        case = Tree.Element("testcase", classname=_TOP, name="the job")
        message = f"{who} raised {raised.error}"
        text = f"{raised.message}{where}"
        _put(case, "error", raised.error, message, text)
        yield case
    if report.verdict == "unknown":
        case = Tree.Element("testcase", classname=_TOP, name="verdict")
        passes = rendering.allow_incomplete and not report.has_failed
        kind = "skipped" if passes else "error"
        gaps = "\n".join(f"{one.what}: {one.why}" for one in report.not_examined)
        message = (
            "unknown: the job failed, and no check knows why"
            if report.has_failed
            else "unknown: nothing wrong was found, but not all was seen"
        )
        _put(case, kind, "unknown", message, gaps)
        yield case


def _case(
    code: str, rendering: Rendering, findings: Sequence[FindingData]
) -> Tree.Element:
    called = findings[0].name.replace("-", " ") if findings else ""
    name = f"{code} {rendering.names.get(code, called)}".strip()
    family = _FAMILIES.get(code[2:3], "others")
    return Tree.Element("testcase", classname=f"{_TOP}.{family}", name=plain(name))


def _judge(
    case: Tree.Element,
    code: str,
    findings: Sequence[FindingData],
    ignored: Sequence[tuple[FindingData, str]],
    report: Report,
    rendering: Rendering,
) -> None:
    """Say of a check what it said."""
    failing = {"error", "warning"} if rendering.strict else {"error"}
    bad = [one for one in findings if one.severity in failing]
    told = [_told(one) for one in findings if one.severity not in failing]
    told += [f"ignored ({reason})\n{_told(one)}" for one, reason in ignored]
    why = report.checks.why.get(code, "")
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        text = "\n\n".join(map(_told, bad))
        _put(case, "failure", code, bad[0].summary + more, text)
    elif code in report.checks.crashed:
        last = why.strip().rpartition("\n")[2]
        message = f"a fault of distdoctor's own: {last}"
        _put(case, "error", "internal", message, why)
    elif findings:
        pass  # warnings and notes are told, and nothing has failed
    elif ignored:
        _put(case, "skipped", "ignored", f"ignored: {ignored[0][1]}", "")
    elif code in report.checks.unknown:
        _put(case, "skipped", "unknown", f"unknown: {why}", "")
    elif code in report.checks.not_applicable:
        _put(case, "skipped", "not applicable", f"does not apply: {why}", "")
    if told:
        output = Tree.SubElement(case, "system-out")
        output.text = plain_lines("\n\n".join(told))


def _put(case: Tree.Element, kind: str, type_: str, message: str, text: str) -> None:
    result = Tree.SubElement(case, kind, type=plain(type_), message=plain(message))
    result.text = plain_lines(text) or None


def _every(findings: Sequence[FindingData]) -> Iterator[FindingData]:
    """Findings, and all that follows from them."""
    for finding in findings:
        yield finding
        yield from _every(finding.consequences)


def _told(finding: FindingData) -> str:
    """A finding for people, in lines."""
    lines = [
        f"{finding.severity}: {finding.code} {finding.name.replace('-', ' ')} "
        f"({finding.certainty})",
        finding.summary,
    ]
    if finding.ranks:
        lines.append(f"at fault: {named(finding.ranks)}")
    if finding.victims:
        lines.append(f"led astray or waiting: {named(finding.victims)}")
    for location in finding.locations:
        ranks = [named(location.ranks)] if location.ranks else []
        remark = ": ".join([*ranks, *filter(None, [location.remark])])
        place = f"{location.file}:{location.line} {location.function}".rstrip()
        lines.append(f"{place}   {remark}".rstrip())
    lines.append(f"cure: {finding.remedy} (distdoctor explain {finding.code})")
    return "\n".join(lines)
