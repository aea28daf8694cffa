"""What `distdoctor.check`, `examine` and `autopsy` return: a judged run as a value."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import FormatUnknown, NotWell
from distdoctor.report.formats import FORMATS, TEXT, Rendering, render

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from distdoctor.model.run import Run
    from distdoctor.report.schema import FindingData, LocationData, Report

_NARROWEST, _WIDEST = 60, 120


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's source that a finding names.

    Attributes:
        file: Relative to the working directory where it can be.
        line: From 1; 0: not known.
        function: The function it is in.
        ranks: Ranks that stood there.
        role: What these have to do with it: culprit, victim or party.
        remark: A few words on what they did there.
    """

    file: str
    line: int
    function: str
    ranks: tuple[int, ...]
    role: str
    remark: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedFinding:
    """One thing found wrong.

    Attributes:
        code: Such as `DD108`.
        name: Such as `skipped-collective`.
        severity: error, warning or note.
        certainty: proved, or likely.
        summary: One sentence, with the figures seen.
        ranks: The culprits; empty when all share the fault, or none stands out.
        victims: Ranks that wait or were led astray.
        locations: Lines of the source, most telling first.
        remedy: The cure.
        consequences: What follows from it.
    """

    code: str
    name: str
    severity: str
    certainty: str
    summary: str
    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    locations: tuple[SourceLine, ...]
    remedy: str
    consequences: tuple[ExaminedFinding, ...]


@dataclass(frozen=True, slots=True)
class NotSeen:
    """Something that was not examined.

    Attributes:
        what: What it is.
        why: Why it was not.
        ranks: Of which ranks; empty: of all, or of none by number.
    """

    what: str
    why: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, repr=False, eq=False)
class Examination:
    """A run that was judged.

    In a notebook it shows itself, and `print(examination.text)` or rich's `print` show
    the report for people.

    Attributes:
        stdout: What the job printed; empty unless `distdoctor.check` ran it.
        stderr: Likewise.
        exit_status: What the command leaves with: 0 well, 1 sick, 3 a fault of
            distdoctor's own, 4 unknown.
    """

    _report: Report
    _run: Run
    exit_status: int
    stdout: str = ""
    stderr: str = ""
    _directory: Path = field(default_factory=Path.cwd)

    @property
    def verdict(self) -> str:
        """Either sick, well or unknown."""
        return self._report.verdict

    @property
    def ok(self) -> bool:
        """Whether it is well: nothing wrong was found, and all was seen."""
        return self.verdict == "well"

    @cached_property
    def findings(self) -> tuple[ExaminedFinding, ...]:
        """What was found, errors first; each has its consequences in it."""
        return tuple(map(_found, self._report.findings))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of these findings, warnings and notes included, each once."""
        return tuple(dict.fromkeys(one.code for one in self._report.findings))

    @cached_property
    def not_examined(self) -> tuple[NotSeen, ...]:
        """What was not seen; for a verdict that is unknown, this is why."""
        return tuple(
            NotSeen(one.what, one.why, tuple(one.ranks))
            for one in self._report.not_examined
        )

    @property
    def report(self) -> Report:
        """All of it, in the schema `distdoctor.report/1`: a copy, yours to change."""
        return copy.deepcopy(self._report)

    @property
    def record(self) -> Path | None:
        """The record folder, if it was kept: for `distdoctor.examine`."""
        kept = self._report.run.record
        return self._directory / Path(kept).expanduser() if kept else None

    @property
    def text(self) -> str:
        """The report for people, as the command prints it."""
        return self.to(TEXT)

    def raise_for_verdict(
        self, *, strict: bool = False, allow_incomplete: bool = False
    ) -> None:
        """Raise unless the run is well.

        Args:
            strict: Warnings count as errors.
            allow_incomplete: A run will do in which nothing wrong was found, and not
                all was seen (verdict unknown); not where the job failed.

        Raises:
            NotWell: It is not; the text is the report.
        """
        bad = self.verdict == "sick"
        passes = allow_incomplete and not self._report.has_failed
        bad |= self.verdict == "unknown" and not passes
        warned = strict and any(one.severity == "warning" for one in self.findings)
        if bad or warned or self._report.checks.crashed:
            what = f"{self.verdict}, not well"
            if warned and not bad:
                what = f"{self.verdict}, with warnings"
            raise NotWell(f"the run is {what}\n\n{self.text}")

    def to(self, form: str, *, strict: bool = False, verbose: bool = False) -> str:
        """The report in a format of `distdoctor check --format`.

        Args:
            form: Such as `json`, `sarif`, `junit`, `github`, `markdown` or
                `html`, a page for a browser.
            strict: Warnings count as errors.
            verbose: List the checks that found nothing, where the format has a place
                for them.

        Raises:
            FormatUnknown: There is none of this name.
            PackageMissing: `html` needs jinja2, which is not installed.
        """
        return self._rendered(form, strict=strict, verbose=verbose)

    def to_json(self) -> str:
        """The report in the schema `distdoctor.report/1`."""
        return self.to("json")

    def to_html(self) -> str:
        """What a notebook shows of it: HTML that needs nothing else, and no script.

        It is a part of a page; `to("html")` gives a whole one, with pictures.
        """
        from distdoctor.report.notebook_html import fragment

        return fragment(self._report, self._run)

    def write(self, form: str, path: str | Path, *, strict: bool = False) -> Path:
        """Write the report to a file in a format of `distdoctor check --format`.

        Args:
            form: Such as `json`, `sarif`, `junit`, `github`, `markdown` or
                `html`, a page for a browser.
            path: The file.
            strict: Warnings count as errors.

        Returns:
            The file.

        Raises:
            FormatUnknown: There is none of this name.
            PackageMissing: `html` needs jinja2, which is not installed.
            OSError: It cannot be written.
        """
        file = Path(path)
        file.write_text(self.to(form, strict=strict), encoding="utf-8")
        return file

    def _rendered(self, form: str, *, strict: bool, verbose: bool) -> str:
        from distdoctor.catalogue import manuals, names_by_code

        if form not in FORMATS:
            raise FormatUnknown(f"no format {form!r}; use one of {', '.join(FORMATS)}")
        rendering = Rendering(
            directory=self._directory,
            manuals=manuals,
            names=names_by_code(),
            strict=strict,
            verbose=verbose,
        )
        return render(form, [_Pair(self._report, self._run)], rendering)

    def __repr__(self) -> str:
        return f"<Examination {_in_words(self._report)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.to_html()

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """What rich prints: the report for people, as wide as there is room."""
        from rich.text import Text

        from distdoctor.report import text

        width = max(_NARROWEST, min(options.max_width, _WIDEST))
        colour = console.color_system is not None
        told = text.render(self._report, self._run, width=width, colour=colour)
        yield Text.from_ansi(told.rstrip("\n"), overflow="fold")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A report and its run, as formats take them."""

    report: Report
    run: Run


def _found(finding: FindingData) -> ExaminedFinding:
    return ExaminedFinding(
        code=finding.code,
        name=finding.name,
        severity=finding.severity,
        certainty=finding.certainty,
        summary=finding.summary,
        ranks=tuple(finding.ranks),
        victims=tuple(finding.victims),
        locations=tuple(map(_line, finding.locations)),
        remedy=finding.remedy,
        consequences=tuple(map(_found, finding.consequences)),
    )


def _line(location: LocationData) -> SourceLine:
    return SourceLine(
        location.file,
        location.line,
        location.function,
        tuple(location.ranks),
        location.role,
        location.remark,
    )


def _in_words(report: Report) -> str:
    """A report on one line."""
    from distdoctor.report.plain_text import plain

    ranks = f"{report.world_size} rank{'s' * (report.world_size != 1)}"
    parts = [*_findings_in_words(report.findings)]
    parts += [f"the job failed: {one.error}" for one in report.raised[:1]]
    words = "; ".join([f"{report.script} on {ranks}: {report.verdict}", *parts])
    return plain(words)


def _findings_in_words(findings: Sequence[FindingData]) -> Iterator[str]:
    from distdoctor.model.run import named

    for one in findings[:2]:
        where = [named(one.ranks)] if one.ranks else []
        where += [f"{at.file}:{at.line}" for at in one.locations[:1]]
        yield f"{one.code} {one.name.replace('-', ' ')}" + (
            f" ({', '.join(where)})" if where else ""
        )
    if len(findings) > 2:
        yield f"{len(findings) - 2} more"
