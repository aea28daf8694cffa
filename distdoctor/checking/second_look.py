"""A job that ends in a tie of two ranks, started again with three.

Where two ranks meet in calls that do not match, and neither what they did before nor
the source tells which of them strayed, a third rank makes a majority. Where three ranks
stumble over their number, as over a batch that three cannot divide, four are tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import LaunchRefused
from distdoctor.launch.job import DEFAULT_RANKS, Job

if TYPE_CHECKING:
    from distdoctor.checking.judged_run import Judged
    from distdoctor.report.schema import FindingData, Report

RANKS = (3, 4)
"""How many are started instead of two, in this order."""

LEAST_S = 10.0
"""Of the budget, for a look to be worth it: torch takes seconds to come up."""

_TIES = re.compile(r"DD10[1-8]")
"""Codes of calls that do not match."""

_ENDS = frozenset({"DD202"})
"""Codes of ranks that died: what ranks do that cannot be divided."""


def is_worth_it(
    report: Report, job: Job, script: Path | None, *, is_default: bool
) -> bool:
    """Whether more ranks may decide what two did not, and may be started.

    Args:
        report: Of the two.
        job: Theirs.
        script: The user's program; None: the command is the user's own.
        is_default: Nobody gave a number of ranks.
    """
    return is_tied(report) and may_look_again(job, script, is_default=is_default)


def may_look_again(job: Job, script: Path | None, *, is_default: bool) -> bool:
    """Whether the number of ranks is ours: nobody has named one, and we start them.

    Args:
        job: The job.
        script: The user's program; None: the command is the user's own.
        is_default: Nobody gave a number of ranks.
    """
    from distdoctor.launch.command import source_of

    if script is None or not job.own or not is_default:
        return False
    return job.expected == DEFAULT_RANKS and source_of(script).world_size is None


def is_tied(report: Report) -> bool:
    """Whether the report names no rank because none was in the majority."""
    return any(
        _TIES.fullmatch(one.code) and not one.ranks and "group" in one.details
        for one in _errors(report)
    ) and not any(map(_names_ranks, _errors(report)))


def advise_more_ranks(report: Report) -> None:
    """Tell in the report that a third rank would decide what two leave open.

    Args:
        report: Of a job that is not started again with more.
    """
    from distdoctor.analysis.causes import NO_MAJORITY  # --help need not wait for it

    undecided = [
        one.code
        for one in _errors(report)
        if NO_MAJORITY in one.summary and (not one.ranks or one.certainty == "likely")
    ]
    if report.world_size == DEFAULT_RANKS and undecided:
        report.remarks.append(
            f"two ranks have {NO_MAJORITY} that shows which of them is at fault "
            f"({undecided[0]}); three have one: run it on three, as with -n {RANKS[0]}"
        )


def look_again(
    first: Judged, budget_s: float, judge: Callable[[int, float], Judged | None]
) -> Judged:
    """The report of more ranks if they decide, else of the first; it tells of both.

    Args:
        first: What two ranks did.
        budget_s: Of all runs together.
        judge: Starts the job with so many ranks and so many seconds, and judges that;
            None if it was interrupted. It may raise LaunchRefused: it cannot be
            started so.
    """
    left_s = budget_s - first.report.run.seconds
    tried: list[str] = []
    for ranks in RANKS:
        if left_s < LEAST_S:
            break
        try:
            further = judge(ranks, left_s)
        except LaunchRefused:
            break
        if further is None:
            break
        tried.append(str(ranks))
        left_s -= further.report.run.seconds
        if any(map(_names_ranks, _errors(further.report))):
            code = next(one.code for one in _errors(first.report))
            further.report.remarks.append(
                f"two ranks have no majority ({code} named none of them), so the job "
                f"was started again with {ranks}: this is what these did; "
                "--no-second-look leaves that out"
            )
            return further
        if not _stumbled(further.report):
            break
    if tried:
        first.report.remarks.append(
            f"the job was started again with {' and '.join(tried)} ranks, since two "
            "have no majority, and that did not decide it either"
        )
    return first


def _errors(report: Report) -> Iterator[FindingData]:
    return (one for one in report.findings if one.severity == "error")


def _names_ranks(finding: FindingData) -> bool:
    of_communication = finding.code < "DD3" and finding.code not in _ENDS
    return of_communication and bool(finding.ranks)


def _stumbled(report: Report) -> bool:
    """Whether ranks failed, before what was to be seen."""
    return any(report.run.exit_codes.values()) or bool(report.run.exit_code)
