"""Under which conditions a job ran: software, variables, processes, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.model.observations.environment import Configured, Software
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import shown
from distdoctor.report.schema import Report

_MOST_ROWS = 300
_MOST_FILES = 200
_MOST_PROCESSES = 128


@dataclass(frozen=True, slots=True)
class Setting:
    """Something with a value; the values of ranks may differ."""

    name: str
    values: tuple[tuple[str, str], ...]  # value and ranks; one without ranks: all

    @property
    def differs(self) -> bool:
        """Whether ranks have different values."""
        return len(self.values) > 1


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A rank's process, as it was seen from outside."""

    rank: int
    pid: int
    host: str
    condition: str
    doing: str
    kernel: str
    cpu: str
    memory: str
    remark: str


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that was found."""

    path: str
    state: str
    kind: str
    ranks: str
    why: str


@dataclass(frozen=True, slots=True)
class EnvironmentTables:
    """All of it.

    Attributes:
        facts: Of the run: what and value.
        software: Versions, those that differ first.
        variables: Of the environment, likewise.
        processes: Of a job that was looked at.
        files: Of a job that nobody watched.
        left_out: What the tables have no room for.
    """

    facts: tuple[tuple[str, str], ...]
    software: tuple[Setting, ...]
    variables: tuple[Setting, ...]
    processes: tuple[ProcessRow, ...]
    files: tuple[FileRow, ...]
    left_out: tuple[str, ...]


def environment_tables(run: Run, report: Report) -> EnvironmentTables:
    """The tables of a run.

    Args:
        run: What was examined.
        report: What was found.
    """
    software = _settings(_software(run))
    variables = _settings(_variables(run))
    left_out = []
    for name, many, most in (
        ("versions", len(software), _MOST_ROWS),
        ("variables", len(variables), _MOST_ROWS),
        ("processes", len(report.processes), _MOST_PROCESSES),
        ("files", len(report.files), _MOST_FILES),
    ):
        if many > most:
            left_out.append(f"{many - most:,} more {name}: --format json has all.")
    return EnvironmentTables(
        facts=tuple(_facts(report)),
        software=tuple(software[:_MOST_ROWS]),
        variables=tuple(variables[:_MOST_ROWS]),
        processes=tuple(_processes(report)),
        files=tuple(_files(report)),
        left_out=tuple(left_out),
    )


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    run = report.run
    launch = " ".join(report.launch)
    yield from (
        (name, shown(value))
        for name, value in (
            ("script", report.script),
            ("started as", launch),
            ("torch", run.torch),
            ("backend", run.backend),
            ("device", run.device),
            ("distdoctor", report.distdoctor),
            ("record", run.record),
        )
        if value
    )
    yield "ranks", f"{report.world_size:,}"
    if run.simulated:
        yield "simulated alone", named(run.simulated)
    yield "calls recorded", f"{run.calls:,}"
    if run.seconds:
        yield "seconds", f"{run.seconds:.1f}"
    if run.exit_code is not None:
        yield "exit code of the command", str(run.exit_code)
    by_code: dict[int, list[int]] = {}
    for rank, code in run.exit_codes.items():
        if code is not None:
            by_code.setdefault(code, []).append(int(rank))
    if by_code:
        parts = (f"{code} of {named(ranks)}" for code, ranks in by_code.items())
        yield "exit codes of ranks", ", ".join(parts)
    if run.proof_ms is not None:
        yield "from the last event to the proof", f"{run.proof_ms:.1f} ms"
    for one in report.substituted:
        yield f"in place of {shown(one.what)}", shown(one.by)


def _software(run: Run) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for rank in run.seen:
        for one in run.of(Software, rank):
            mine = found.setdefault(rank, {})
            python = f"{one.python} ({one.implementation})"
            if one.python:
                mine.setdefault("Python", python)
            if one.executable:
                mine.setdefault("interpreter", one.executable)
            mine |= zip(one.packages, one.versions, strict=False)
    return found


def _variables(run: Run) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for rank in run.seen:
        for one in run.of(Configured, rank):
            mine = found.setdefault(rank, {})
            mine |= {
                name: value
                for name, _, value in (text.partition("=") for text in one.settings)
            }
    return found


def _settings(by_rank: Mapping[int, Mapping[str, str]]) -> list[Setting]:
    """Names with their values; those in which ranks differ come first."""
    names = dict.fromkeys(name for mine in by_rank.values() for name in mine)
    found = []
    for name in sorted(names):
        ranks_of: dict[str | None, list[int]] = {}
        for rank, mine in by_rank.items():
            ranks_of.setdefault(mine.get(name), []).append(rank)
        # Masked with its name, by which a secret is known.
        values = tuple(
            (
                "not set" if value is None else _value(name, value),
                named(ranks) if len(ranks_of) > 1 else "",
            )
            for value, ranks in ranks_of.items()
        )
        found.append(Setting(shown(name, 120), values))
    found.sort(key=lambda one: not one.differs)
    return found


def _value(name: str, value: str) -> str:
    masked = shown(f"{name}={value}", 400)
    return masked.removeprefix(f"{shown(name, 400)}=")


def _processes(report: Report) -> Iterator[ProcessRow]:
    for one in report.processes[:_MOST_PROCESSES]:
        memory = f"{one.memory_bytes / 2**20:,.0f} MiB" if one.memory_bytes else ""
        yield ProcessRow(
            one.rank,
            one.pid,
            shown(one.host, 120),
            one.condition,
            shown(one.doing, 300),
            shown(one.kernel, 120),
            f"{100 * one.cpu:.0f} %",
            memory,
            shown(one.remark, 300),
        )


def _files(report: Report) -> Iterator[FileRow]:
    for one in report.files[:_MOST_FILES]:
        ranks = named(one.ranks) if one.ranks else ""
        yield FileRow(
            shown(one.path, 300), one.state, one.kind, ranks, shown(one.why, 300)
        )
