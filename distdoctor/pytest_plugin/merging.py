"""Merges the ranks' reports of a test into one report per phase.

A phase failed if it failed on any rank. The failure shown in full is the culprit's; the
others are named, and shown where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from _pytest._code.code import ExceptionRepr
from _pytest.skipping import evaluate_xfail_marks

from distdoctor.model.run import named
from distdoctor.model.stop_reasons import Stop
from distdoctor.pytest_plugin.headline import (
    concerned,
    headline,
    representation,
    stacks,
)
from distdoctor.pytest_plugin.outcome import Outcome, PhaseReport
from distdoctor.report.text import render

_PHASES = ("setup", "call", "teardown")
_MOST_FAILURES = 6  # that differ from the culprit's, shown in full

_MOST_WORDS = 16  # of ranks that failed in one line


def merge(item: pytest.Item, outcome: Outcome, timeout_s: float) -> list[Any]:
    """The merged reports of a test: setup, call, if there was one, and teardown.

    Args:
        item: The test.
        outcome: What its ranks told.
        timeout_s: What it was given.
    """
    if outcome.unable:
        report = _fresh(item, "setup")
        report.outcome = "skipped"
        report.longrepr = (str(item.path), (item.location[1] or 0) + 1, outcome.unable)
        return [report, _fresh(item, "teardown")]
    phases = _by_phase(item, outcome)
    broken = _broken_phase(outcome)
    reports = []
    for key, by_rank in phases.items():
        report = _merged(by_rank, outcome, culprits=_blamed(outcome))
        reports.append(report)
        if _is_follower(report, by_rank, outcome):
            # What was told is only what came of it: a connection that broke.
            followed = str(report.longrepr)
            _fail(item, report, outcome, timeout_s)
            _add_section(report, "what came of it on other ranks", followed)
            broken = ""
        found = outcome.findings and broken in {"", "call"}
        if key[0] == "call" and found and report.outcome != "failed":
            _fail(item, report, outcome, timeout_s)
            broken = ""
    if broken:
        _break(item, reports, broken, outcome, timeout_s)
    has_failed = any(report.outcome == "failed" for report in reports)
    if outcome.findings and not has_failed:  # of a test that was skipped, say
        _break(item, reports, "call", outcome, timeout_s)
    _complete(item, reports)
    _decorate(reports, outcome)
    return reports


# --- what the ranks told ---


def _by_phase(
    item: pytest.Item, outcome: Outcome
) -> dict[tuple[str, str], dict[int, tuple[Any, PhaseReport]]]:
    """Reports by phase and rank; subtests are phases of their own."""
    phases: dict[tuple[str, str], dict[int, tuple[Any, PhaseReport]]] = {}
    for rank, reports in sorted(outcome.phase_reports.items()):
        for phase_report in reports:
            report = item.config.hook.pytest_report_from_serializable(
                config=item.config, data=phase_report.data
            )
            if report is not None:
                context = str(getattr(report, "context", ""))
                by_rank = phases.setdefault((report.when, context), {})
                by_rank[rank] = (report, phase_report)
    order = sorted(phases, key=lambda key: (_PHASES.index(key[0]), not key[1]))
    return {key: phases[key] for key in order}


def _blamed(outcome: Outcome) -> set[int]:
    return {rank for finding in outcome.findings for rank in finding.ranks}


def _is_follower(
    report: Any, by_rank: Mapping[int, tuple[Any, PhaseReport]], outcome: Outcome
) -> bool:
    """Whether all failures of a phase are due to a rank that told of none."""
    failed = [
        phase_report
        for report, phase_report in by_rank.values()
        if report.outcome == "failed"
    ]
    known = outcome.died or outcome.findings or outcome.stopped
    return (
        report.outcome == "failed"
        and bool(known)
        and all(phase_report.secondary for phase_report in failed)
    )


def _merged(
    by_rank: Mapping[int, tuple[Any, PhaseReport]],
    outcome: Outcome,
    culprits: set[int],
) -> Any:
    reports = {rank: report for rank, (report, _) in by_rank.items()}
    expected = {r for r, report in reports.items() if hasattr(report, "wasxfail")}
    failed = {r for r, report in reports.items() if report.outcome == "failed"}
    if expected & {r for r, x in reports.items() if x.outcome == "skipped"}:
        # Expected to fail, and it did somewhere: that it passed elsewhere is no news.
        failed -= {r for r in failed if _passed_unexpectedly(reports[r])}
    skipped = {r for r, report in reports.items() if report.outcome == "skipped"}
    if failed:
        first = min(
            failed,
            key=lambda r: (
                by_rank[r][1].secondary,
                r not in culprits,
                by_rank[r][1].at_ns,
            ),
        )
        # Of those that failed alike always the same one is shown.
        first = min(r for r in failed if _place(reports[r]) == _place(reports[first]))
        merged = reports[first]
        _tell_of_failures(merged, first, {r: reports[r] for r in failed}, outcome)
    elif skipped & expected:
        merged = reports[min(skipped & expected)]
    elif len(skipped) == len(reports):
        merged = reports[min(skipped)]
    else:
        merged = reports[min(set(reports) - skipped)]
    _add_up(merged, reports)
    return merged


def _passed_unexpectedly(report: Any) -> bool:
    return isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS")


def _add_up(merged: Any, reports: Mapping[int, Any]) -> None:
    """Give a report what all ranks have: time, properties, what they printed."""
    merged.duration = max(report.duration for report in reports.values())
    for name, choose in (("start", min), ("stop", max)):
        times = [getattr(report, name, None) for report in reports.values()]
        known = [time for time in times if time is not None]
        if known:
            setattr(merged, name, choose(known))
    properties: list[Any] = []
    for report in reports.values():
        properties += [p for p in report.user_properties if p not in properties]
    merged.user_properties = properties
    printed: dict[tuple[str, str], list[int]] = {}
    for rank, report in reports.items():
        for name, content in report.sections:
            printed.setdefault((name, content), []).append(rank)
    merged.sections = [
        (f"{name}, {named(ranks)}", content)
        for (name, content), ranks in sorted(
            printed.items(), key=lambda entry: entry[1]
        )
    ]


def _tell_of_failures(
    merged: Any, first: int, failed: Mapping[int, Any], outcome: Outcome
) -> None:
    """Say which ranks failed alike, and show failures elsewhere."""
    if len(outcome.phase_reports) == 1:
        return
    groups: dict[str, list[int]] = {}
    for rank in [first, *sorted(set(failed) - {first})]:
        groups.setdefault(_place(failed[rank]), []).append(rank)
    alike, *others = groups.values()
    parts = [f"{named(alike)} failed{' alike' if len(alike) > 1 else ''}"]
    parts += [f"{named(ranks)} failed otherwise" for ranks in others]
    missing = {*outcome.unfinished, *outcome.died, *outcome.lost}
    well = sorted(set(outcome.phase_reports) - set(failed) - missing)
    if well:
        parts.append(f"{named(well)} did not fail")
    lines = ["; ".join(parts), *_own_words(alike, failed)]
    _add_section(merged, "ranks", "\n".join(lines))
    for ranks in others[:_MOST_FAILURES]:
        text = "\n".join([str(failed[ranks[0]].longrepr), *_own_words(ranks, failed)])
        _add_section(merged, f"{named(ranks)} failed otherwise", text)


def _place(report: Any) -> str:
    """Where a rank failed: ranks that failed in one line failed alike."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr) if crash is None else f"{crash.path}:{crash.lineno}"


def _own_words(ranks: Sequence[int], failed: Mapping[int, Any]) -> list[str]:
    """The first lines of what ranks said, where they said it in other words."""
    by_message: dict[str, list[int]] = {}
    for rank in ranks:
        crash = getattr(failed[rank].longrepr, "reprcrash", None)
        message = "" if crash is None else str(crash.message).partition("\n")[0]
        by_message.setdefault(message, []).append(rank)
    if len(by_message) < 2:
        return []
    lines = [f"{named(who)}: {message}" for message, who in by_message.items()]
    more = [f"and {len(lines) - _MOST_WORDS} more"] * (len(lines) > _MOST_WORDS)
    return [*lines[:_MOST_WORDS], *more]


# --- what no rank told ---


def _broken_phase(outcome: Outcome) -> str:
    """The phase in which a rank went missing; "" if all told all."""
    if outcome.refused:
        return "setup"
    missing = {*outcome.unfinished, *outcome.died, *outcome.lost}
    if not missing and not outcome.stopped:
        return ""
    done = [
        {
            phase_report.data["when"]
            for phase_report in outcome.phase_reports.get(rank, ())
        }
        for rank in missing
    ]
    if any("setup" not in phases for phases in done):
        return "setup" if not outcome.phase_reports or outcome.lost else "call"
    if any("call" not in phases for phases in done):
        return "call"
    return "teardown"


def _break(
    item: pytest.Item,
    reports: list[Any],
    phase: str,
    outcome: Outcome,
    timeout_s: float,
) -> None:
    """Fail a phase that no report of a rank tells of, unless one tells of a failure."""
    there = [report for report in reports if report.when == phase]
    if any(report.outcome == "failed" for report in reports):
        failed = next(report for report in reports if report.outcome == "failed")
        if outcome.died or outcome.remark or outcome.stopped != Stop.DEADLOCK:
            _add_section(failed, "ended", headline(outcome, timeout_s))
        return
    if there:
        report = there[0]
    else:
        report = _fresh(item, phase, outcome)
        at = sum(_PHASES.index(r.when) < _PHASES.index(phase) for r in reports)
        reports.insert(at, report)
    _fail(item, report, outcome, timeout_s)
    if phase == "setup":  # what came after it counts no more
        reports[:] = [r for r in reports if r.when == "setup"]


def _fail(item: pytest.Item, report: Any, outcome: Outcome, timeout_s: float) -> None:
    report.outcome = "failed"
    report.__dict__.pop("wasxfail", None)
    report.longrepr = representation(item, outcome, timeout_s)
    if report.when == "call" and (outcome.stopped or not outcome.findings):
        _expect(item, report)


def _expect(item: pytest.Item, report: Any) -> None:
    """A hang or a death of a test that is marked to fail is what was expected."""
    mark = evaluate_xfail_marks(item)
    if mark is not None and mark.raises is None:
        report.outcome, report.wasxfail = "skipped", mark.reason


# --- what all reports get ---


def _fresh(item: pytest.Item, phase: str, outcome: Outcome | None = None) -> Any:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when=phase,  # type: ignore[arg-type]
        duration=outcome.seconds if outcome is not None else 0.0,
    )


def _complete(item: pytest.Item, reports: list[Any]) -> None:
    """Pytest counts on a setup first and a teardown last."""
    if not reports or reports[0].when != "setup":
        reports.insert(0, _fresh(item, "setup"))
    if reports[-1].when != "teardown":
        reports.append(_fresh(item, "teardown"))


def _decorate(reports: Iterable[Any], outcome: Outcome) -> None:
    """Put the diagnosis first, and what the unfinished have printed."""
    codes = [
        f"{finding.code} {named(ranks)}"
        if (ranks := concerned(finding))
        else finding.code
        for finding in outcome.findings
    ]
    for report in reports:
        if report.outcome == "failed" or (outcome.stopped and report.when == "call"):
            if outcome.judgement is not None and (outcome.findings or outcome.stopped):
                judged = outcome.judgement
                text = render(judged.report, judged.run)
                _add_section(report, "distdoctor", text, first=True)
            if outcome.falsifying:
                _add_section(report, "hypothesis", outcome.falsifying, first=True)
            if standing := stacks(outcome):
                _add_section(report, "where the ranks stood", standing)
            report.sections = [*report.sections, *_unreported(outcome)]
            break
    for report in reports:  # junit's report takes them from the last
        properties = [("distdoctor", code) for code in codes]
        report.user_properties = [*report.user_properties, *properties]


def _unreported(outcome: Outcome) -> Iterator[tuple[str, str]]:
    for rank, printed in sorted(outcome.printed.items()):
        for stream, text in printed.items():
            yield f"Captured {stream}, rank {rank}, which did not end", text
    for rank, text in sorted(outcome.printed_outside.items()):
        yield f"Last words, rank {rank}", text


def _add_section(report: Any, name: str, text: str, *, first: bool = False) -> None:
    longrepr = report.longrepr
    if isinstance(longrepr, ExceptionRepr):
        longrepr.addsection(name, text, "-")
        if first:
            longrepr.sections.insert(0, longrepr.sections.pop())
    elif isinstance(longrepr, str):
        report.longrepr = f"{longrepr}\n--- {name} ---\n{text}"
