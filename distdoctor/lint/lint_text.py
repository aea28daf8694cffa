"""What reading texts found, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from distdoctor.lint.linting import Lint
from distdoctor.lint.source_findings import SourceFinding, ToldLine
from distdoctor.report.page import Page
from distdoctor.report.plain_text import plain

_CONTEXT = 2  # lines before the one that is shown


def concise(lint: Lint) -> str:
    """A line for each finding, as editors read them; empty if there are none.

    Args:
        lint: What was found.
    """
    return "".join(f"{_head(one)}\n" for one in lint.findings)


def full(lint: Lint, cures: Mapping[str, str], width: int, colour: bool) -> str:
    """Each finding with its lines, what belongs to it and the cure, and a last line.

    Args:
        lint: What was found.
        cures: By code.
        width: Columns.
        colour: Whether to use terminal colours.
    """
    page = Page(width, colour)
    texts = {file.file: file.lines for file in lint.code.files}
    for finding in lint.findings:
        head = _head(finding)
        place, _, rest = head.partition(f": {finding.code} ")
        page.print(
            Text.assemble(
                (f"{place}: ", "bold"), (f"{finding.code} ", "bold yellow"), rest
            ),
            soft_wrap=True,
        )
        for row, style in _excerpt(finding.at, texts.get(finding.at.file, [])):
            page.print(Text(row, style), soft_wrap=True)
        for line in finding.related:
            where = f"{line.line}" if line.file == finding.at.file else _place(line)
            page.print(Text(f"      = {where}: {line.remark}", "dim"), soft_wrap=True)
        cure = cures.get(finding.code, "")
        page.print(Text(f"      = cure: {plain(cure)}", "green"), soft_wrap=True)
        if finding.fix is not None:
            page.print(Text("      = --fix shows the change", "dim"))
        page.print()
    page.print(Text(_last(lint)), soft_wrap=True)
    return page.text()


def _head(finding: SourceFinding) -> str:
    at = finding.at
    return f"{_place(at)}:{at.column}: {finding.code} {plain(finding.message)}"


def _place(line: ToldLine) -> str:
    return f"{plain(line.file)}:{line.line}"


def _excerpt(at: ToldLine, lines: list[str]) -> Iterator[tuple[str, str]]:
    """The line with those before it, and a mark below where it begins."""
    for number in range(max(1, at.line - _CONTEXT), min(at.line, len(lines)) + 1):
        text = plain(lines[number - 1].expandtabs(4).rstrip())
        mark, style = ("▸", "bold") if number == at.line else (" ", "dim")
        yield f"    {mark}{number:5} │ {text}", style


def _last(lint: Lint) -> str:
    count, files = len(lint.findings), len(lint.read)
    if not files:
        return "nothing was read, so nothing was found"
    read = f"{files} file{'s' if files != 1 else ''}, {lint.lines} lines"
    ignored = f", {len(lint.ignored)} ignored" if lint.ignored else ""
    if not count:
        return f"nothing found in {read}{ignored}; distdoctor check can tell more"
    codes = ", ".join(sorted({one.code for one in lint.findings}))
    return (
        f"{count} found in {read}{ignored}; a text proves nothing: distdoctor check "
        f"shows what happens, distdoctor explain {codes.split(', ')[0]} what it means"
    )
