"""The report for people: the verdict, the line to look at, the others, the cure.

What comes from the job (messages, names of files) may hold control characters; they
are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distdoctor.analysis.causes import capital
from distdoctor.analysis.deadlock.next_calls import next_calls
from distdoctor.model.events import BLOCKED, State
from distdoctor.model.run import Run, named, ranges
from distdoctor.report.comparison_words import same_in_words
from distdoctor.report.formats import Rendering, ReportedRun
from distdoctor.report.page import Page
from distdoctor.report.plain_text import job_size, plain
from distdoctor.report.schema import (
    FindingData,
    HintData,
    IgnoredData,
    LocationData,
    RaisedData,
    Report,
)
from distdoctor.report.stack_text import stack_lines

_MARGIN = 7
_AROUND = 2  # lines of source shown before and after
_FILES = 2  # named of a kind of evidence
_EXCERPTS = 2  # locations shown with their source
_ROWS = 8  # rows of ranks shown
_CALLS = 3  # calls shown on a row
_FORETOLD = 2  # calls that would have followed
_PLACE = 20  # columns for the line of the last of them
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_WORDS = {"error": "SICK", "warning": "warn", "note": "note"}


def render_all(reported: Sequence[ReportedRun], rendering: Rendering) -> str:
    """Reports as text, one after the other; see `distdoctor.report.formats`."""
    return "\n".join(
        render(
            one.report,
            one.run,
            width=rendering.width,
            colour=rendering.colour,
            verbose=rendering.verbose,
        )
        for one in reported
        if one.run is not None  # it is kept wherever people read
    )


def render(
    report: Report,
    run: Run,
    *,
    width: int = 80,
    colour: bool = False,
    verbose: bool = False,
) -> str:
    """The report as text.

    Args:
        report: What to say.
        run: For the rows of ranks and the excerpts of source.
        width: Columns.
        colour: Whether to use terminal colours.
        verbose: Whether to list the checks that do not apply.
    """
    page = Page(width, colour)
    page.print(_headline(report), soft_wrap=True)
    if report.findings or report.raised or report.verdict == "unknown":
        page.print()
    for raised in report.raised:
        page.print(_raised(raised, run))
        page.print()
    for finding in report.findings:
        page.print(_finding(finding, run))
        page.print()
    if not any(finding.severity == "error" for finding in report.findings):
        page.print(_health(report))
    if run.stack_tree:
        page.print(Text("stacks", style="bold"))
        for line in stack_lines(run.stack_tree):
            page.print(Padding(Text(line), (0, 0, 0, _MARGIN)))
        page.print()
    if report.compared is not None and report.compared.same:
        page.print(_hanging("same", same_in_words(report.compared), "green"))
    for ignored in report.ignored:
        page.print(_hanging("ignored", _waived(ignored), "dim"))
    for gap in report.not_examined:
        page.print(_hanging("not examined", f"{gap.what}: {gap.why}", "dim"))
    if report.substituted:
        substitutes = "; ".join(
            f"{one.by} for {one.what}" for one in report.substituted
        )
        page.print(_hanging("substituted", substitutes, "dim"))
    if report.evidence_of_ranks:
        page.print(_hanging("evidence", _evidence(report), "dim"))
    for remark in report.remarks:
        page.print(_hanging("remark", remark, "dim"))
    for hint in report.hints:
        page.print(_hanging("hint", _hint(hint), "dim"))
    if verbose:
        page.print(_hanging("well", ", ".join(report.checks.well) or "none", ""))
        left = ", ".join(report.checks.not_applicable) or "none"
        page.print(_hanging("do not apply", left, ""))
    if report.findings or report.verdict != "well":
        page.print(_last_line(report), soft_wrap=True)
    return page.text()


def _hint(hint: HintData) -> str:
    """What stands in the text, and was not seen: nobody knows whether it happens."""
    where = f"{plain(hint.file)}:{hint.line}"
    return f"{where} by its text alone, {hint.code}: {plain(hint.what)}"


def _headline(report: Report) -> Text:
    run = report.run
    release = ".".join(report.distdoctor.split(".")[:2])
    parts = [
        f"distdoctor {release}",
        f"{plain(report.script)} on {job_size(report.world_size)}",
    ]
    if run.simulated:
        parts.append(f"simulated as {named(run.simulated)}")
    if run.torch:
        torch = ".".join(run.torch.split("+")[0].split(".")[:2])
        parts.append(plain(f"torch {torch} {run.backend}/{run.device}"))
    if report.launch[:1] not in (["autopsy"], ["examine"]):
        steps = f"{run.steps} step{'s' * (run.steps != 1)}"
        parts.append(f"{steps} in {run.seconds:.1f} s")
    elif run.seconds:
        parts.append(f"looked at for {run.seconds:.0f} s")
    if run.exit_code:
        parts.append(f"exit code {run.exit_code}")
    return Text(plain(" · ".join(parts)), style="bold")


def _raised(raised: RaisedData, run: Run) -> RenderableType:
    """An exception that ended the job, and its line."""
    message = "".join(raised.message.splitlines()[:1])
    headline = f"{raised.error}: {message}" if message else raised.error
    who = capital(named(raised.ranks)) if raised.ranks else "A process without a rank"
    parts: list[RenderableType] = [
        Text.assemble((f"{'FAILED':7}", "bold red"), (plain(headline), "bold")),
        Padding(
            Text(f"{who} raised it, and no finding tells of it."),
            (0, 0, 1, _MARGIN),
        ),
    ]
    if raised.location is not None:
        parts.append(_located(raised.location, run))
    return Group(*parts)


def _health(report: Report) -> RenderableType:
    more = "else " if report.ignored else ""
    if report.has_failed:
        return _hanging("unknown", "the job failed, and no check knows why", "yellow")
    if report.verdict != "well":
        return _hanging(
            "unknown", f"nothing {more}wrong was found, but not all was seen", "yellow"
        )
    checks = report.checks
    text = f"{len(checks.well)} checks found nothing{more and ' more'}"
    if checks.not_applicable:
        text += f"; {len(checks.not_applicable)} do not apply: --verbose lists them"
    return _hanging("well", text, "green")


def _waived(ignored: IgnoredData) -> str:
    one = ignored.finding
    name = one.name.replace("-", " ")
    return f"{one.code} {name}: {one.summary} ({ignored.where}: {ignored.reason})"


def _evidence(report: Report) -> str:
    """Of which ranks there is what."""
    parts = []
    for one in report.evidence_of_ranks[:_ROWS]:
        what = ", ".join(one.evidence) or "nothing of its own"
        parts.append(f"{named(one.ranks)}: {what}")
    more = len(report.evidence_of_ranks) - _ROWS
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _short(path: str) -> str:
    """A path's last folder and its name."""
    return "/".join(path.split("/")[-2:])


def _last_line(report: Report) -> Text:
    counts = [
        f"{n} {word}{'s' if n > 1 else ''}"
        for word in ("error", "warning", "note")
        if (n := sum(finding.severity == word for finding in report.findings))
    ]
    if following := sum(1 for one in report.findings for _ in _following(one)):
        counts.append(f"{following} that follow{'s' * (following == 1)}")
    words = [f"verdict: {report.verdict}", *counts]
    if report.run.record:
        words.append(f"kept in {plain(report.run.record)}")
    return Text(" · ".join(words), style="bold")


def _finding(finding: FindingData, run: Run) -> RenderableType:
    style = _STYLES[finding.severity]
    title = Table.grid(expand=True)
    title.add_column()
    title.add_column(justify="right")
    name = plain(finding.name.replace("-", " "))
    title.add_row(
        Text.assemble(
            (f"{_WORDS[finding.severity]:7}", style), (f"{finding.code} {name}", "bold")
        ),
        finding.certainty,
    )
    parts: list[RenderableType] = [
        title,
        Padding(Text(plain(finding.summary)), (0, 0, 1, _MARGIN)),
    ]
    shown: set[tuple[str, int]] = set()
    for location in finding.locations:
        at = (location.file, location.line)
        if at not in shown and len(shown) < _EXCERPTS:
            shown.add(at)
            parts.append(_located(location, run))
    if picture := finding.details.get("picture"):
        drawn = "\n".join(plain(str(line)) for line in picture)
        parts.append(Padding(Text(drawn, no_wrap=True), (0, 0, 1, _MARGIN)))
    # The calls that are shown are those of the last start of the ranks.
    hidden = bool(picture) or "start" in finding.details
    hidden |= "run" not in run.evidence and not len(run.calls)  # nothing told any
    rows = [] if hidden else list(_rows(finding, run))
    if rows:
        parts.append(_table(rows))
    if any("(" in calls for _, _, calls, _ in rows):
        legend = "in parentheses: what followed that call the time before"
        parts.append(Padding(Text(legend, "dim"), (0, 0, 1, _MARGIN)))
    if since := _since(finding):
        parts.append(Padding(Text(plain(since), "dim"), (0, 0, 1, _MARGIN)))
    for reported in finding.told_by:
        named_ = ", ".join(_short(path) for path in reported.files[:_FILES])
        more = reported.count - len(reported.files[:_FILES])
        files = f"{named_} and {more} more" if more else named_
        parts.append(_hanging(reported.evidence, f"{reported.what} ({files})", "dim"))
    remedy = f"{finding.remedy} (distdoctor explain {finding.code})"
    parts.append(_hanging("cure", remedy, "green"))
    for one in _following(finding):
        words = f"{one.code} {one.name.replace('-', ' ')}: {one.summary}"
        parts.append(_hanging("so too", words, "dim"))
    return Group(*parts)


def _following(finding: FindingData) -> Iterator[FindingData]:
    """All that follows from a finding, each once."""
    for one in finding.consequences:
        yield one
        yield from _following(one)


def _located(location: LocationData, run: Run) -> RenderableType:
    """A line of the user's source with its neighbours."""
    remark = f" {location.remark}" if location.remark else ""
    head = Text.assemble(
        (f"{plain(location.file)}:{location.line}", "bold"),
        f" {plain(location.function)}".rstrip(),
        (f"   {named(location.ranks)}:{plain(remark)}", "dim")
        if location.ranks
        else (plain(remark), "dim"),
    )
    lines: list[Text] = [head]
    source = run.sources.get(location.file, "").splitlines()
    first = max(1, location.line - _AROUND)
    if source and location.line <= len(source):
        for number in range(first, min(len(source), location.line + _AROUND) + 1):
            here = number == location.line
            text = plain(source[number - 1].expandtabs(4).rstrip())
            lines.append(
                Text(
                    f"{'▸' if here else ' '}{number:5} │ {text}",
                    style="bold" if here else "",
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
    return Padding(Group(*lines), (0, 0, 1, _MARGIN))


def _rows(finding: FindingData, run: Run) -> Iterator[tuple[str, str, str, str]]:
    """What each rank did around the fault; ranks that did the same share a row."""
    group = finding.details.get("group")
    index = next((n for n, g in enumerate(run.groups) if g.name == group), None)
    culprits = set(finding.ranks)
    folded: dict[tuple[str, str, bool], list[int]] = {}
    known: dict[tuple[bytes, bool], tuple[str, str]] = {}
    columns = run.calls[_TOLD]
    for rank in [*finding.ranks, *finding.victims]:
        rows, more = _last_calls(run, rank, index)
        alike = (columns[rows].tobytes() if rows else b"", more)
        if alike not in known:
            known[alike] = _row(run, rows, next_calls(run, rank, _FORETOLD), more)
        folded.setdefault((*known[alike], rank in culprits), []).append(rank)
    for (calls, place, culprit), ranks in sorted(
        folded.items(), key=lambda item: min(item[1])
    )[:_ROWS]:
        mark = "▸" if culprit else " "
        yield f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}", mark, calls, place


_TOLD = ["ordinal", "op", "state", "site"]  # columns that a row of ranks shows


def _last_calls(run: Run, rank: int, group: int | None) -> tuple[list[int], bool]:
    """A rank's last calls on a group, and whether it made others."""
    mine = run.rows_of(rank)
    rows = list(mine[-_CALLS:])
    if group is not None and mine:
        rows = run.rows_on(rank, group)[-_CALLS:].tolist()
    return rows, len(mine) > len(rows)


def _row(run: Run, rows: list[int], after: list[int], more: bool) -> tuple[str, str]:
    if not rows:
        return "no call on the group", ""
    words = []
    for row in rows:
        call = run.call(row)
        waits = (
            "…" if call.state in BLOCKED else "✗" if call.state is State.RAISED else ""
        )
        words.append(f"{call.ordinal or ''} {call.op}{waits}".strip())
    if after:
        words.append(f"({', '.join(run.call(row).op for row in after)})")
    place = run.call(rows[-1]).place
    at = f"{place.file.rpartition('/')[2]}:{place.line}" if place else ""
    at = at if len(at) <= _PLACE else "…" + at[1 - _PLACE :]
    return ("… " if more else "") + "   ".join(words), at


def _since(finding: FindingData) -> str:
    """Since when ranks wait; where they do, their rows and lines have shown."""
    since: dict[str, set[int]] = {}
    for one in finding.details.get("waiting", []):
        since.setdefault(f"{one['since_s']:.1f}", set()).update(one["ranks"])
    waits = [f"{named(ranks)} from {at}" for at, ranks in [*since.items()][:_ROWS]]
    head = "standing still, in seconds after the first call"
    return f"{head}: {', '.join(waits)}" if waits else ""


def _table(rows: list[tuple[str, str, str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=_PLACE)
    for ranks, mark, calls, place in rows:
        table.add_row(ranks, Text(mark, "bold"), f"│ {plain(calls)}", plain(place))
    return Padding(table, (0, 0, 1, _MARGIN))


def _hanging(label: str, text: str, style: str) -> RenderableType:
    table = Table.grid()
    table.add_column(width=max(_MARGIN, len(label) + 2), no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style), Text(plain(text)))
    return table
