"""What a page shows of one report, section by section."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from distdoctor.analysis.causes import capital
from distdoctor.model.run import Run, named
from distdoctor.report.comparison_words import same_in_words
from distdoctor.report.html.call_maps import call_maps, left_out
from distdoctor.report.html.environment_tables import environment_tables
from distdoctor.report.html.finding_cards import (
    Excerpt,
    FindingCard,
    cards,
    excerpt,
    finding_card,
)
from distdoctor.report.html.nccl_picture import nccl_picture
from distdoctor.report.html.sample_charts import sample_charts
from distdoctor.report.html.shown_text import counted, shown
from distdoctor.report.html.stack_outline import stack_outline
from distdoctor.report.html.swim_lanes import swim_lanes
from distdoctor.report.html.wait_pictures import wait_picture
from distdoctor.report.html.weight_charts import weight_charts
from distdoctor.report.schema import Report

NOT_KEPT = (
    "Only the report is at hand here, and not what the ranks did: a session of tests "
    "keeps no more. Pages of `distdoctor check` and `distdoctor examine` show it."
)
_NO_MAP = "No group of several ranks made collectives that can be compared."


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section with something in it."""

    key: str  # also the name of its macro
    title: str
    content: Any


@dataclass(frozen=True, slots=True)
class RaisedCard:
    """An exception that ended the job, and that no finding tells of."""

    title: str
    who: str
    lines: tuple[str, ...]
    excerpt: Excerpt | None


@dataclass(frozen=True, slots=True)
class IgnoredCard:
    """A finding that the user wants to be ignored."""

    card: FindingCard
    why: str


@dataclass(frozen=True, slots=True)
class ReportContent:
    """One report on the page.

    Attributes:
        key: Begins the names of its places in the page.
        script: What was run.
        verdict: sick | well | unknown.
        word: The same for readers.
        mark: A sign for it.
        sentence: What it means here.
        facts: A few words on the run.
        findings: Cards, errors first.
        counts: How many findings of each severity, in words.
        raised: Exceptions.
        ignored: Findings that do not count.
        gaps: What was not examined, why, and the ranks.
        remarks: What distdoctor could not do, and the like.
        same: What came of comparing with another run.
        checks: Verdict of checks, and their codes.
        sections: Those that have something to show.
        empty: Titles of the others, each with why it is empty.
    """

    key: str
    script: str
    verdict: str
    word: str
    mark: str
    sentence: str
    facts: tuple[str, ...]
    findings: tuple[FindingCard, ...]
    counts: str
    raised: tuple[RaisedCard, ...]
    ignored: tuple[IgnoredCard, ...]
    gaps: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]
    same: str
    checks: tuple[tuple[str, tuple[str, ...]], ...]
    sections: tuple[PageSection, ...]
    empty: tuple[tuple[str, str], ...]


_MARKS = {"sick": "✖", "well": "✔", "unknown": "?"}


def content_of(
    report: Report, run: Run | None, key: str, *, is_strict: bool = False
) -> ReportContent:
    """What the page shows of a report.

    Args:
        report: What to say.
        run: What was examined; None: it is not kept.
        key: Begins the names of its places in the page.
        is_strict: Warnings count as errors.
    """
    sections, empty = _sections(report, run)
    checks = report.checks
    return ReportContent(
        key=key,
        script=shown(report.script, 200),
        verdict=report.verdict,
        word=report.verdict.upper(),
        mark=_MARKS.get(report.verdict, ""),
        sentence=_sentence(report),
        facts=tuple(_facts(report, is_strict=is_strict)),
        findings=tuple(cards(report.findings, run)),
        counts=_counts(report),
        raised=tuple(_raised(report, run)),
        ignored=tuple(
            IgnoredCard(
                finding_card(one.finding, run),
                f"{shown(one.where, 300)}: {shown(one.reason)}",
            )
            for one in report.ignored
        ),
        gaps=tuple(
            (
                shown(one.what),
                shown(one.why, 6_000),
                named(one.ranks) if one.ranks else "",
            )
            for one in report.not_examined
        ),
        remarks=tuple(shown(one) for one in report.remarks),
        same=same_in_words(report.compared)
        if report.compared is not None and report.compared.same
        else "",
        checks=tuple(
            (word, tuple(codes))
            for word, codes in (
                ("sick", checks.sick),
                ("unknown", checks.unknown),
                ("well", checks.well),
                ("do not apply", checks.not_applicable),
                ("crashed (a fault of distdoctor's own)", checks.crashed),
            )
            if codes
        ),
        sections=tuple(sections),
        empty=tuple(empty),
    )


_Maker: TypeAlias = Callable[[Run, Report], Any]
"""Gives the content of a section, or, as a text, why it has none."""

_OF_RUNS: tuple[tuple[str, str, _Maker], ...] = (
    ("waits", "Who waits for whom", wait_picture),
    ("maps", "Ranks and collectives", lambda run, report: _maps(run, report)),
    ("lanes", "Calls in time", swim_lanes),
    ("stacks", "Merged stacks", lambda run, _: stack_outline(run)),
    ("samples", "Who read which samples", lambda run, _: sample_charts(run)),
    ("weights", "Copies of the model, step by step", lambda run, _: weight_charts(run)),
    ("nccl", "NCCL's topology", nccl_picture),
    ("environment", "Environment", environment_tables),
)


def _sections(
    report: Report, run: Run | None
) -> tuple[list[PageSection], list[tuple[str, str]]]:
    if run is None:
        titles = [title for _, title, _ in _OF_RUNS]
        return [], [(" · ".join([*titles, "Lines of source"]), NOT_KEPT)]
    sections, empty = [], []
    for key, title, make in _OF_RUNS:
        content = make(run, report)
        if isinstance(content, str):
            empty.append((title, content))
        else:
            sections.append(PageSection(key, title, content))
    return sections, empty


def _maps(run: Run, report: Report) -> tuple[Any, int] | str:
    found = call_maps(run, report)
    return (found, left_out(run)) if found else _NO_MAP


def _sentence(report: Report) -> str:
    errors = sum(one.severity == "error" for one in report.findings)
    if report.verdict == "sick":
        first = next(one for one in report.findings if one.severity == "error")
        others = f", and {counted(errors - 1, 'more error')}" if errors > 1 else ""
        return f"{first.code} {first.name.replace('-', ' ')}{others}"
    more = "else " if report.ignored else ""
    if report.verdict == "well":
        return f"{counted(len(report.checks.well), 'check')} found nothing {more}wrong"
    if report.has_failed:
        return "The job failed, and no check knows why"
    return f"Nothing {more}wrong was found, but not all was seen"


def _facts(report: Report, *, is_strict: bool) -> list[str]:
    run = report.run
    facts = [counted(report.world_size, "rank")]
    if run.simulated:
        facts.append(f"simulated as {named(run.simulated)}")
    if run.torch:
        facts.append(shown(f"torch {run.torch} {run.backend}/{run.device}", 120))
    if report.launch[:1] in (["autopsy"], ["examine"], ["nccl"]):
        if run.seconds:
            facts.append(f"looked at for {run.seconds:.0f} s")
    else:
        facts.append(f"{counted(run.steps, 'step')} in {run.seconds:.1f} s")
    if run.calls:
        facts.append(counted(run.calls, "call"))
    if run.exit_code:
        facts.append(f"exit code {run.exit_code}")
    if is_strict and any(one.severity == "warning" for one in report.findings):
        facts.append("warnings count as errors here")
    return facts


def _counts(report: Report) -> str:
    counts = [
        counted(n, word)
        for word in ("error", "warning", "note")
        if (n := sum(finding.severity == word for finding in report.findings))
    ]
    return ", ".join(counts) or "no finding"


def _raised(report: Report, run: Run | None) -> list[RaisedCard]:
    found = []
    for one in report.raised:
        first, *rest = one.message.splitlines() or [""]
        who = capital(named(one.ranks)) if one.ranks else "A process without a rank"
        found.append(
            RaisedCard(
                title=shown(f"{one.error}: {first}" if first else one.error, 600),
                who=f"{who} raised it, and no finding tells of it.",
                lines=tuple(shown(line, 400) for line in rest[:40]),
                excerpt=None if one.location is None else excerpt(one.location, run),
            )
        )
    return found
