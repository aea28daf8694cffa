"""Run → verdicts: asks every check, and lets none of them guess."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from distdoctor.errors import CauseUnknown, MissingEvidence
from distdoctor.model.declare import Check
from distdoctor.model.events import Call
from distdoctor.model.findings import (
    Certainty,
    Finding,
    NotApplicable,
    Severity,
    Sick,
    Unknown,
    Verdict,
    Well,
)
from distdoctor.model.run import STACK, Run, named
from distdoctor.model.stop_reasons import STANDSTILLS


def examine(run: Run, checks: Iterable[Check]) -> list[Verdict]:
    """One verdict per check, in the order of the checks."""
    return [verdict(run, check) for check in checks]


def verdict(run: Run, check: Check) -> Verdict:
    """What one check says of a run.

    A check whose needs were not watched for is not asked. What is proven stands:
    findings made before the evidence ran out make the verdict sick. What is found at
    the same lines again, as in each trial of a search, is told once.
    """
    for kind in check.needs:
        if kind in run.unwatched:
            return Unknown(check.code, run.unwatched[kind])
    by_identity: dict[object, Finding] = {}
    missing: MissingEvidence | None = None
    try:
        for finding in check.examine(run):  # and what came before a raise is kept
            by_identity.setdefault((finding.culprits, _identity(finding)), finding)
    except MissingEvidence as error:
        missing = error
    except Exception:  # noqa: BLE001 - one broken check must not silence the others
        return Unknown(check.code, traceback.format_exc(), internal=True)
    findings = [*by_identity.values()]
    stood = run.stopped in STANDSTILLS and Call in check.needs
    if run.faltered and not stood:  # calls that could not meet are no such fault
        findings = [_doubted(finding, check, run.faltered) for finding in findings]
    if {*run.evidence} == {STACK}:  # it shows where ranks stand, and not their past
        findings = [replace(one, certainty=Certainty.LIKELY) for one in findings]
    if findings:
        return Sick(
            check.code,
            check.disease,
            check.severity,
            tuple(findings),
            check.manual.remedy(),
        )
    if missing is not None:
        seen = isinstance(missing, CauseUnknown)
        return Unknown(check.code, str(missing), seen=seen)
    for kind in check.needs:
        if not run.has(kind):
            return NotApplicable(check.code, f"the run has no {kind.__name__} events")
    return Well(check.code)


def together(
    last: Sequence[Verdict], earlier: Sequence[Sequence[Verdict]]
) -> list[Verdict]:
    """One verdict per check on a job whose ranks were started several times.

    Args:
        last: Verdicts on the last start.
        earlier: Those on the starts before it, of the same checks.
    """
    starts = len(earlier) + 1
    return [
        _joined(verdict, [of[n] for of in earlier], starts)
        for n, verdict in enumerate(last)
    ]


def _joined(last: Verdict, earlier: Sequence[Verdict], starts: int) -> Verdict:
    """The worst of what a check says of several starts, and all it has found."""
    known = set(map(_identity, last.findings)) if isinstance(last, Sick) else set()
    found: list[Finding] = []
    sick = last
    for number, verdict in enumerate(earlier, start=1):
        if isinstance(verdict, Sick):
            sick = sick if isinstance(sick, Sick) else verdict
            for finding in verdict.findings:
                if _identity(finding) not in known:
                    known.add(_identity(finding))
                    found.append(_of_start(finding, number, starts))
    if isinstance(sick, Sick):
        own = last.findings if isinstance(last, Sick) else ()
        return replace(sick, findings=(*found, *own))
    every = [last, *earlier]
    for kind in (Unknown, Well):
        if of_kind := [verdict for verdict in every if isinstance(verdict, kind)]:
            return of_kind[0]
    return last


def _identity(finding: Finding) -> object:
    """What two findings of the same thing, seen twice, have in common."""
    return (
        tuple((one.place, one.remark) for one in finding.locations) or finding.message
    )


def _of_start(finding: Finding, number: int, starts: int) -> Finding:
    return replace(
        finding,
        message=f"{finding.message.rstrip('.')} (at start {number} of {starts} of the "
        "ranks).",
        details={**finding.details, "start": number},
    )


def _doubted(finding: Finding, check: Check, faltered: Set[int]) -> Finding:
    """A finding of a run in which probes went wrong: what they missed may be why.

    Nobody is told to be sick for a fault of ours; what was found is still worth a look.
    """
    severity = finding.severity or check.severity
    whose = "a probe" if len(faltered) == 1 else "probes"
    return replace(
        finding,
        message=f"{finding.message.rstrip('.')} ({whose} of {named(faltered)} failed "
        "in this run; it may only look so)",
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING if severity is Severity.ERROR else severity,
    )
