"""Describes a test's failure for which no rank has sent a report."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from _pytest._code.code import (
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from distdoctor.model.run import named
from distdoctor.model.stop_reasons import Stop
from distdoctor.pytest_plugin.outcome import Outcome
from distdoctor.report.schema import FindingData

_WHY: dict[str, str] = {
    Stop.DEADLOCK: "deadlock",
    Stop.REFUSED: "a call was refused because it cannot meet the other ranks' calls",
    Stop.STUCK: "a rank that others wait for has moved nowhere for long",
    Stop.TIMEOUT: "the test did not end within its timeout",
    Stop.FAILED: "other ranks did not end after a failure",
}


def representation(
    item: pytest.Item, outcome: Outcome, timeout_s: float
) -> ReprExceptionInfo:
    """The failure in pytest's form, at the line that the diagnosis names.

    Args:
        item: The test.
        outcome: What came of it.
        timeout_s: What it was given.
    """
    path, line = str(item.path), (item.location[1] or 0) + 1
    first = headline(outcome, timeout_s)
    for places in [*outcome.stacks.values()][:1]:
        path, line = places[0].file, places[0].line
    for finding in outcome.findings[:1]:
        if finding.locations:
            where = finding.locations[0]
            path, line = where.file, where.line
    lines = [first]
    lines += [f"rank {rank}: {text}" for rank, text in sorted(outcome.lost.items())]
    entry = ReprEntryNative([text + "\n" for text in lines])
    crash = ReprFileLocation(path, line, first.partition("\n")[0])
    return ReprExceptionInfo(
        reprcrash=crash, reprtraceback=ReprTraceback([entry], None, "native")
    )


def headline(outcome: Outcome, timeout_s: float) -> str:
    """One line on what happened: finding, ranks and source line where known."""
    if outcome.refused:
        return outcome.refused
    parts = [finding_line(finding) for finding in outcome.findings]
    parts += [outcome.remark] * bool(outcome.remark)
    parts += [
        f"rank {rank} {_ended(status)}" for rank, status in sorted(outcome.died.items())
    ]
    if outcome.lost and not parts:
        parts.append(f"{named(sorted(outcome.lost))} could not run the test")
    if outcome.stopped and (not outcome.findings or outcome.stopped == Stop.TIMEOUT):
        why = _WHY.get(outcome.stopped, outcome.stopped)
        if outcome.stopped == Stop.TIMEOUT:
            why += f" of {timeout_s:g} s"
        if outcome.unfinished:
            why += f"; {named(outcome.unfinished)} had not ended"
        for rank, places in [*outcome.stacks.items()][:1]:
            why += f"; rank {rank} stood at {places[0].file}:{places[0].line}"
        parts.append(why)
    return "; ".join(parts) or "the test did not end as it should"


def finding_line(finding: FindingData) -> str:
    """Code, name, ranks and source line of a finding.

    Args:
        finding: The finding.
    """
    who = f" {named(ranks)}" if (ranks := concerned(finding)) else ""
    at = ""
    if finding.locations:
        at = f" at {finding.locations[0].file}:{finding.locations[0].line}"
    return f"{finding.code} {finding.name.replace('-', ' ')}:{who}{at}"


def concerned(finding: FindingData) -> Sequence[int]:
    """The culprits of a finding, or else the ranks at its source line."""
    if finding.ranks or not finding.locations:
        return finding.ranks
    return finding.locations[0].ranks


def _ended(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"was killed by {name}"
    return f"left with exit code {status} in the middle of the test"


def stacks(outcome: Outcome) -> str:
    """Stacks of the ranks that did not finish, equal ones once, as Python prints."""
    alike: dict[str, list[int]] = {}
    for rank, places in sorted(outcome.stacks.items()):
        lines = [f"  {place.file}:{place.line} {place.function}" for place in places]
        alike.setdefault("\n".join(lines), []).append(rank)
    return "\n".join(f"{named(ranks)}\n{text}" for text, ranks in alike.items())
