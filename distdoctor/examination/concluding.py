"""Verdicts → conclusion: sick, well or unknown, and what was not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.examination.failure_words import (
    MOST_FAILURES_TOLD,
    ending_failures,
    in_words,
)
from distdoctor.examination.gaps import Gap, gaps_of, is_error
from distdoctor.examination.waivers import Waived
from distdoctor.model.events import Failure
from distdoctor.model.findings import Severity, Sick, Verdict
from distdoctor.model.observations.equivalence import Property
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended the job, as far as no finding tells of it.

    Attributes:
        failure: One of those who raised it.
        ranks: All of them; none: a process that had no rank, such as their parent.
    """

    failure: Failure
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The whole: "sick", "well" or "unknown", and what was not seen."""

    verdict: str
    gaps: tuple[Gap, ...]
    raised: tuple[Raised, ...] = ()


def conclude(
    run: Run, verdicts: Sequence[Verdict], waived: Sequence[Waived] = ()
) -> Conclusion:
    """Sum up: sick by any error, unknown if a gap could hide one, else well.

    Args:
        run: The run.
        verdicts: One per check, without findings that are ignored.
        waived: These.

    Returns:
        The verdict of the whole, and what was not seen.
    """
    ignored = [one.root.sick.code for one in waived]
    gaps = tuple(gaps_of(run, verdicts, ignored))
    raised = tuple(_raised(run, verdicts))
    if any(map(is_error, verdicts)):
        return Conclusion("sick", gaps, raised)
    verdict = "unknown" if any(gap.hides for gap in gaps) else "well"
    return Conclusion(verdict, gaps, raised)


def _raised(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Raised]:
    """The exceptions that ended the job and are not told by a finding."""
    if run.exit_code == 0 or run.simulated:
        return
    alike: dict[str, list[Failure]] = {}
    for failure in ending_failures(run):
        alike.setdefault(in_words(failure), []).append(failure)
    if not alike:
        whole = [one for one in run.outside if one.error not in _ECHOES]
        for failure in whole or run.outside:
            alike.setdefault(in_words(failure), []).append(failure)
    places = {
        location.place
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
        for location in finding.locations
    }
    victims = {
        rank
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
        for rank in finding.victims
    }
    every = [one for failures in alike.values() for one in failures]
    of_nccl = any(
        isinstance(verdict, Sick)
        and verdict.code.startswith(_OF_NCCL)
        and any(verdict.severity_of(one) is Severity.ERROR for one in verdict.findings)
        for verdict in verdicts
    )
    if all(one.secondary for one in every) and (
        of_nccl
        or any(one.place in places for one in every)
        or victims.issuperset(one.rank for one in every)
    ):
        return  # calls that failed on several ranks, and one finding tells why
    for failures in [*alike.values()][:MOST_FAILURES_TOLD]:
        first = failures[0]
        is_shown = first.place is not None and first.place in places
        if not (is_shown or _is_told(first, verdicts)):
            ranks = sorted({one.rank for one in failures if one.rank >= 0})
            yield Raised(first, tuple(ranks))


def _is_told(failure: Failure, verdicts: Sequence[Verdict]) -> bool:
    """Whether a finding rests on an exception, or one was raised to tell of a finding.

    The latter names the code, and says why in the words of what was observed.
    """
    return any(
        exhibit == failure
        or (
            isinstance(exhibit, Property)
            and bool(why := exhibit.why)
            and f"({verdict.code})" in failure.message
            and why in failure.message
        )
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
        for exhibit in finding.exhibits
    )


_OF_NCCL = "DD60"
"""How the codes begin of what NCCL's own log tells, and of what its calls fail by."""

_ECHOES = {"ProcessRaisedException", "ProcessExitedException", "CalledProcessError"}
"""By these a parent tells that a child of its failed."""
